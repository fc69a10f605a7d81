"""What keeps a worker from starting."""


class SetupError(Exception):
    """A worker cannot start as configured; the message is for the operator."""
