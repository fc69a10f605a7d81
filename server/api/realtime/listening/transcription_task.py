"""The task that transcribes one turn, between the producer of audio and the waiters for its transcript."""

import logging
from abc import ABC, abstractmethod

import anyio

from stentor.protocols.common.errors import BadRequest

from ....common.errors import GenerationFailed, ServerError

logger = logging.getLogger(__name__)


class TranscriptionTask(ABC):
    """The transcription of one turn. The transcribing task calls :meth:`run`, the task that feeds audio calls the
    others."""

    def __init__(self) -> None:
        self._complete = False
        """Nothing more will come."""
        self.lag: float | None = None
        """Seconds from the end of the turn's audio to its transcript."""
        self._news = anyio.Event()
        self._less = anyio.Event()
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()
        self._failure: Exception | None = None
        self._finished_at = 0.0

    @property
    @abstractmethod
    def _untranscribed_ms(self) -> int:
        """Audio without a final transcript, in ms."""

    @abstractmethod
    async def _transcribe_turn(self) -> None:
        """Runs until all audio is transcribed."""

    @abstractmethod
    def _drop(self) -> None:
        """Lets go of the audio that is left."""

    # ---- outside

    @property
    def waiting_ms(self) -> int:
        """Audio of a complete turn without a final transcript, in ms."""
        return self._untranscribed_ms if self._complete and not self._ended.is_set() else 0

    async def room(self, most_ms: int) -> None:
        """Returns once less than ``most_ms`` of audio waits for its final transcript, or once the task has ended."""
        while self._untranscribed_ms > most_ms and not self._ended.is_set():
            await self._less.wait()

    def give_up(self) -> None:
        """The transcript is no longer needed."""
        self._scope.cancel()
        self._drop()

    @property
    def _over(self) -> bool:
        """Whether it has ended, or was cancelled."""
        return self._ended.is_set() or self._scope.cancel_called

    def _notify(self) -> None:
        """There is something for the task to look at."""
        self._news.set()
        self._news = anyio.Event()

    def _close(self) -> None:
        """There is no more audio."""
        self._complete = True
        self._finished_at = anyio.current_time()
        self._notify()

    async def _until_ended(self) -> None:
        """Waits for the task's end. Raises its ``BadRequest`` or ``ServerError``."""
        await self._ended.wait()
        if self._failure is not None:
            raise self._failure

    # ---- inside

    async def run(self) -> None:
        """Runs until all audio is transcribed, or the turn is given up."""
        self._failure = GenerationFailed()
        try:
            with self._scope:
                await self._transcribe_turn()
                self._failure = None
                self.lag = anyio.current_time() - self._finished_at
        except (BadRequest, ServerError) as error:
            self._failure = error
        except Exception:
            logger.exception("a turn could not be transcribed")
        finally:
            self._drop()
            self._ended.set()
            self._notify_progress()

    async def _notified(self, until: float = float("inf")) -> bool:
        """Waits until it is notified, or to a time of :func:`anyio.current_time`; whether it was notified."""
        news = self._news
        with anyio.move_on_at(until):
            await news.wait()
            return True
        return False

    def _notify_progress(self) -> None:
        """Notifies waiters that less audio remains."""
        self._less.set()
        self._less = anyio.Event()
