"""Errors of loading."""


class CheckpointError(Exception):
    """A checkpoint cannot be used. The message is one line: what happened, what was expected, what to do."""
