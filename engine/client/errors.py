"""Why an engine takes no request."""


class EngineUnavailable(Exception):
    """The engine cannot take requests: it is starting or has been given up."""


class EngineAsleep(EngineUnavailable):
    """The engine has no worker until it is woken."""

    def __init__(self) -> None:
        super().__init__("the engine sleeps")


class EngineLost(Exception):
    """An engine process ended or must be ended; another may succeed."""
