"""Processes for media, as requests use them, with errors for the client."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from stentor.engine.channel.arena import ArenaFull

from ..common.errors import Overloaded, ServerError
from ..common.fair_queue import QueueFull
from ..overload.process_pool import PoolClosed, PoolProcess, ProcessPool
from ..sandbox.killable_child import Abandoned, ChildNotStarted, Starved

logger = logging.getLogger(__name__)

P = TypeVar("P", bound=PoolProcess)
T = TypeVar("T")

_RETRY_SECONDS: Final = 2


class MediaUnavailable(ServerError):
    """No process can be started to prepare media in."""

    status = 503
    kind = "service_unavailable_error"
    code = "media_unavailable"

    def __init__(self) -> None:
        super().__init__("Media cannot be prepared for the model just now; the log of the server says why.")


@contextmanager
def arena_room() -> Iterator[None]:
    """Maps a full arena to Overloaded."""
    try:
        yield
    except ArenaFull:
        message = "As many images, sounds and videos are being worked on as this server holds; try again shortly."
        raise Overloaded(message, "memory_full", _RETRY_SECONDS) from None


async def run_in(pool: ProcessPool[P], job: Callable[[P], T], size: int) -> T:
    """The result of a job on ``size`` bytes. Raises the job's errors, Overloaded if the queue is full or the machine is
    too busy, and :class:`MediaUnavailable`."""
    try:
        return await pool.run(job, size)
    except QueueFull:
        message = "Too many images, sounds, videos and documents wait to be prepared; try again shortly."
        raise Overloaded(message, "media_full", _RETRY_SECONDS) from None
    except Starved:
        message = "The machine is too busy to prepare media; try again shortly."
        raise Overloaded(message, "media_full", _RETRY_SECONDS) from None
    except (Abandoned, PoolClosed):
        raise MediaUnavailable from None
    except ChildNotStarted as error:
        logger.error("media cannot be prepared for the model: %s", error)
        raise MediaUnavailable from None
