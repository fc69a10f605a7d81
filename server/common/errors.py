"""All errors for clients; :mod:`..http.error_responses` encodes them in the protocol's shape.

::

    Exception
    ├── protocols.common.errors.BadRequest      400, 404, 413: the request is wrong
    ├── ServerError                             500: the server is at fault
    │   ├── GenerationFailed                    500: the engine ended a choice with an error
    │   ├── Unavailable                         503: starting, draining, or the engine is gone
    │   ├── WeightsNotLoaded                    500: the engine is awake with its former weights
    │   ├── Overloaded                          429: a queue is full
    │   │   └── MediaFull                       429: the memory for media sent to a model is full
    │   ├── storage.database.StoreFailed        500: the store could not be read or written
    │   │   ├── DiskFull                        507: the disk is full
    │   │   └── StoreFull                       507: the caller has used up its share of the store
    │   ├── tools.errors.ToolServerFailed       424: an MCP server of the request does not list its tools
    │   ├── pooling.plugin.PluginFailed         500: the operator's plugin failed on the request
    │   └── CutShort                            the request ended before it was done
    │       ├── DeadlineExceeded                504: its time is up
    │       ├── ShutDown                        503: the server's time is up
    │       └── Aborted                         503: the operator has ended it
    └── ClientDisconnected                      no client is left

Messages contain no paths, tracebacks or addresses, which go to the log.
"""

from stentor.protocols.common.errors import BadRequest, refused, wrong
from stentor.protocols.ipc.actors import Finished
from stentor.protocols.ipc.deltas import Finish


class ServerError(Exception):
    """Something that is not the client's fault; ``str(error)`` is safe to show."""

    status = 500
    kind = "server_error"
    code: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the response besides the body."""
        return {}


class GenerationFailed(ServerError):
    code = "generation_failed"

    def __init__(self) -> None:
        super().__init__("The generation failed on the server; the request may be sent again.")


def generation_error(finish: Finish | Finished | None) -> Exception:
    """The client's error for a choice that ended this way, or not at all."""
    fault = "" if finish is None else finish.fault
    match fault:
        case "":
            return GenerationFailed()
        case "engine":
            return Unavailable(ENGINE_LOST, "failed")
        case "shutdown":
            return engine_gone()
        case "grammar":
            return BadRequest(
                "The grammar that this request asks for became too complex on the way; bound what repeats, or ask for "
                "less.",
                code="grammar_too_complex",
            )
        case "adapter":
            return BadRequest(
                "The adapter of this name cannot be served: its files do not fit the model, or have changed.",
                "model",
                "adapter_not_served",
            )
        case "media":
            field = "" if finish is None else finish.field
            return refused(field, "the model cannot take this medium, or none of its size", "invalid_value")
        case field:
            return wrong(
                field, "leaves nothing to draw of what the grammar or the thinking budget asks for", "invalid_value"
            )


ENGINE_LOST = "The engine stopped while it ran the request; the server cannot generate."
PAUSED = "The server is paused and takes no new requests until it is resumed."


class Unavailable(ServerError):
    status = 503
    kind = "service_unavailable_error"

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def headers(self) -> dict[str, str]:
        # the connection would only be used for more that is refused
        return {"connection": "close"} if self.code == "draining" else {}


class WeightsNotLoaded(ServerError):
    code = "weights_not_loaded"

    def __init__(self, why: str) -> None:
        """``why`` is for operators only."""
        super().__init__(f"The new weights could not be loaded, and the former ones are in use: {why}.")


def engine_gone() -> Unavailable:
    """An engine has been given up: the server is about to end."""
    return Unavailable("The engine has stopped; the server cannot generate.", "failed")


class Overloaded(ServerError):
    status = 429
    kind = "rate_limit_error"

    def __init__(self, message: str, code: str, retry_after: int) -> None:
        """``retry_after`` in seconds."""
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        return {"retry-after": str(self.retry_after)}


class MediaFull(Overloaded):
    def __init__(self) -> None:
        message = "Requests that have not ended hold all the memory that there is for media; try again shortly."
        super().__init__(message, "memory_full", 2)


class CutShort(ServerError):
    """The request had to end before it was done."""


class DeadlineExceeded(CutShort):
    """504, not 408: the client has sent all that it should, and 408 invites proxies to send it again."""

    status = 504
    kind = "timeout_error"
    code = "deadline_exceeded"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"The request did not end within its {seconds:g} seconds and was given up.")

    @property
    def headers(self) -> dict[str, str]:
        # SDKs retry every 5xx: the same work would begin again for a client that no longer waits
        return {"x-should-retry": "false"}


class ShutDown(CutShort):
    status = 503
    kind = Unavailable.kind
    code = "shutting_down"

    def __init__(self) -> None:
        super().__init__("The server is shutting down and had to give up the request; it may be sent again.")

    @property
    def headers(self) -> dict[str, str]:
        return {"connection": "close"}


class Aborted(CutShort):
    status = 503
    kind = Unavailable.kind
    code = "aborted"

    def __init__(self) -> None:
        super().__init__("The operator of the server has ended the request.")

    @property
    def headers(self) -> dict[str, str]:
        # SDKs retry every 5xx: work that was ended on purpose would begin again
        return {"x-should-retry": "false"}


class ClientDisconnected(Exception):
    """The client went away before its answer was ready."""
