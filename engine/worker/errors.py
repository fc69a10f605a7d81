"""Errors of a worker's start."""


class SetupError(Exception):
    """A worker cannot start as configured; the message is for the operator."""
