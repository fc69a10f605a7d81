"""Continuous batching as plain data: plans steps and applies their results. No torch, no clock, no I/O."""

from .recovery import RecoveryOutcome
from .scheduler import MAX_IN_FLIGHT, Scheduler

__all__ = ["MAX_IN_FLIGHT", "RecoveryOutcome", "Scheduler"]
