"""What runs next, and what became of it: continuous batching as plain data. No torch, no clock, no I/O."""

from .recovery import Recovery
from .scheduler import MAX_IN_FLIGHT, Scheduler

__all__ = ["MAX_IN_FLIGHT", "Recovery", "Scheduler"]
