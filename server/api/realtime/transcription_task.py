"""The task that hears one turn, between whoever feeds it and whoever waits for what was said."""

import logging
from collections.abc import Awaitable, Callable

import anyio

from stentor.protocols.common.errors import BadRequest

from ...common.errors import GenerationFailed, ServerError

logger = logging.getLogger(__name__)


class TranscriptionTask:
    """Its own are :meth:`run`, and within it :meth:`news` and :meth:`heard`; the rest is for the other side."""

    def __init__(self) -> None:
        self.complete = False
        """Nothing more will come."""
        self.lag: float | None = None
        """Seconds from :meth:`finish` to the transcript."""
        self._news = anyio.Event()
        self._less = anyio.Event()
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()
        self._failure: Exception | None = None
        self._finished_at = 0.0

    @property
    def over(self) -> bool:
        """It has ended, or has been told to."""
        return self._ended.is_set() or self._scope.cancel_called

    @property
    def catches_up(self) -> bool:
        """Nothing more will come, and it has not ended."""
        return self.complete and not self._ended.is_set()

    # ---- outside

    def notify(self) -> None:
        """There is something for it to look at."""
        self._news.set()
        self._news = anyio.Event()

    def finish(self) -> None:
        self.complete = True
        self._finished_at = anyio.current_time()
        self.notify()

    def give_up(self) -> None:
        self._scope.cancel()

    async def until(self, little: Callable[[], bool]) -> None:
        """Waits until so little is left to be heard, or nothing will be any more."""
        while not (little() or self._ended.is_set()):
            await self._less.wait()

    async def ended(self) -> None:
        """Waits for its end. Raises ``BadRequest`` or ``ServerError`` where it could not hear."""
        await self._ended.wait()
        if self._failure is not None:
            raise self._failure

    # ---- inside

    async def run(self, hear: Callable[[], Awaitable[None]], drop: Callable[[], None]) -> None:
        """Until ``hear`` ends, or it is given up; then ``drop`` lets go of the audio that is left."""
        self._failure = GenerationFailed()
        try:
            with self._scope:
                await hear()
                self._failure = None
                self.lag = anyio.current_time() - self._finished_at
        except (BadRequest, ServerError) as error:
            self._failure = error
        except Exception:
            logger.exception("a turn could not be transcribed")
        finally:
            drop()
            self._ended.set()
            self.heard()

    async def news(self, until: float = float("inf")) -> bool:
        """Waits until it is notified, or to a time of :func:`anyio.current_time`; whether it was notified."""
        news = self._news
        with anyio.move_on_at(until):
            await news.wait()
            return True
        return False

    def heard(self) -> None:
        """There may be less to be heard than before."""
        self._less.set()
        self._less = anyio.Event()
