"""Sounds that clients bring, as samples: decoded in processes of their own, off the event loop.

::

    sound = await decoder.decode(data, "file")         # BadRequest names the field
    sound.pcm                                          # signed 16 bits, little-endian, one channel, at 16 000 Hz
"""

import asyncio
import logging
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from stentor.protocols.common.errors import BadRequest

from ..common.errors import Overloaded, ServerError
from ..common.fair_queue import FairQueue, QueueFull, current_owner
from ..config.limits import AudioLimits
from ..sandbox.killable_child import Abandoned, ChildNotStarted
from .decode_process import RATE, DecodeProcess, Refused

logger = logging.getLogger(__name__)

SAMPLE_RATE: Final = RATE
BYTES_PER_SECOND: Final = 2 * SAMPLE_RATE
_LARGE_BYTES: Final = 2 << 20
"""From which on a sound leaves one process to smaller ones."""
_RETRY_SECONDS: Final = 2
_DEFAULT_LIMITS: Final = AudioLimits()


class AudioUnavailable(ServerError):
    """No process can be started to decode in."""

    status = 503
    kind = "service_unavailable_error"
    code = "audio_unavailable"

    def __init__(self) -> None:
        super().__init__("Audio cannot be decoded just now; the log of the server says why.")


@dataclass(frozen=True)
class Decoded:
    """A sound. What it takes of the memory for all of them is given back when nobody refers to it any more."""

    pcm: bytes
    """Signed 16 bits, little-endian, one channel, at :data:`SAMPLE_RATE`; never empty."""

    @property
    def seconds(self) -> float:
        return len(self.pcm) / BYTES_PER_SECOND


class AudioDecoder:
    """For the event loop that it is used from. It must be closed.

    So many sounds are decoded at a time, each in a process of its own; the others wait, bounded, and owners take turns.
    Large ones never have all processes, so that small ones need not wait for them. A sound whose caller has gone is
    given up.
    """

    def __init__(self, limits: AudioLimits = _DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._workers = [_Worker(limits) for _ in range(limits.processes)]
        self._free = list(self._workers)
        self._waiting: FairQueue[_Turn] = FairQueue(limits.max_waiting)
        self._closed = False
        self.held = 0
        """Bytes of pcm that callers hold."""

    @property
    def max_bytes(self) -> int:
        """Of one file."""
        return self._limits.max_bytes

    @property
    def pids(self) -> list[int]:
        """Of the processes that there are."""
        return [pid for worker in self._workers if (pid := worker.process.pid) is not None]

    def warm_up(self) -> None:
        """Starts the first process, so that the first sound need not wait for that. Returns at once."""
        self._workers[0].warm_up()

    async def decode(self, data: bytes, field: str = "file") -> Decoded:
        """The first audio stream of a file: wav, mp3, m4a, mp4, ogg, opus, flac, webm, aac and some more.

        Raises BadRequest naming ``field`` (400: it is none of these, broken or too long; 413: too many bytes),
        :class:`..common.errors.Overloaded` where too many others wait or too much decoded audio is held, and
        :class:`AudioUnavailable`. A file that is cut short or damaged gives what can be read of it.
        """
        limits = self._limits
        if len(data) > limits.max_bytes:
            message = f"`{field}`: the audio has {len(data)} bytes; this server takes at most {limits.max_bytes}."
            raise BadRequest(message, field, "audio_too_large", status=413)
        if not data:
            raise BadRequest(f"`{field}`: the audio is empty.", field, "invalid_audio")
        if self.held >= limits.max_held_seconds * BYTES_PER_SECOND:
            raise Overloaded("As much audio is being worked on as this server holds.", "audio_full", _RETRY_SECONDS)
        worker = await self._place(large=len(data) > _LARGE_BYTES)
        job = worker.submit(data)
        job.add_done_callback(lambda _: self._give_back(worker))
        try:
            pcm = await asyncio.shield(job)
        except asyncio.CancelledError:
            worker.process.abandon()
            raise
        except Refused as refused:
            raise BadRequest(f"`{field}`: the audio: {refused}.", field, refused.code) from None
        except Abandoned:
            raise AudioUnavailable from None
        except ChildNotStarted as error:
            logger.error("no process can be started to decode audio: %s", error)
            raise AudioUnavailable from None
        sound = Decoded(pcm)
        self.held += len(pcm)
        weakref.finalize(sound, self._drop, len(pcm)).atexit = False
        return sound

    def _drop(self, size: int) -> None:
        self.held -= size

    async def _place(self, *, large: bool) -> "_Worker":
        if self._closed:
            raise AudioUnavailable
        if self._may_begin(large):
            return self._take_worker()
        turn = _Turn(large, asyncio.get_running_loop().create_future())
        owner = current_owner.get()
        try:
            dropped = self._waiting.push(owner, turn)
            if dropped is not None and not dropped.worker.done():
                dropped.worker.set_exception(QueueFull())
            return await turn.worker
        except QueueFull:
            raise Overloaded(
                "Too many sounds wait to be decoded; try again shortly.", "audio_full", _RETRY_SECONDS
            ) from None
        except asyncio.CancelledError:
            worker = turn.worker
            if not self._waiting.remove(owner, turn) and not worker.cancelled() and worker.exception() is None:
                self._give_back(worker.result())
            raise

    def _may_begin(self, large: bool) -> bool:
        """Nobody who waits may: so whoever may need not wait."""
        return len(self._free) > (1 if large and len(self._workers) > 1 else 0)

    def _take_worker(self) -> "_Worker":
        # those that have run before come first: the others need not be started
        self._free.sort(key=lambda worker: worker.process.pid is None, reverse=True)
        return self._free.pop()

    def _give_back(self, worker: "_Worker") -> None:
        self._free.append(worker)
        while not self._closed:
            following = self._waiting.pop(lambda _, turn: turn.worker.done() or self._may_begin(turn.large))
            if following is None:
                return
            if not following[1].worker.done():  # else its caller has gone
                following[1].worker.set_result(self._take_worker())

    def close(self) -> None:
        """Ends the processes and whatever they do; who waits gets :class:`AudioUnavailable`. May be called again."""
        if self._closed:
            return
        self._closed = True
        for turn in self._waiting.clear():
            if not turn.worker.done():
                turn.worker.set_exception(AudioUnavailable())
        for worker in self._workers:
            worker.close()


@dataclass(eq=False)
class _Turn:
    """A sound that waits for a worker."""

    large: bool
    worker: "asyncio.Future[_Worker]"


class _Worker:
    """A process, and the thread that does its calls: the kernel ends a child with the thread that began it."""

    def __init__(self, limits: AudioLimits) -> None:
        self.process = DecodeProcess(limits.max_seconds, limits.timeout)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="audio")

    def submit(self, data: bytes) -> "asyncio.Future[bytes]":
        held = [data]  # the executor keeps what it was given until its thread takes something else

        def run() -> bytes:
            return self.process.decode(held.pop())

        future: Future[bytes] = self._executor.submit(run)
        wrapped = asyncio.wrap_future(future)
        wrapped.add_done_callback(_looked_at)
        return wrapped

    def warm_up(self) -> None:
        # where it fails, the first sound says so
        self._executor.submit(self.process.start)

    def close(self) -> None:
        self.process.abandon()
        self._executor.submit(self.process.close)
        self._executor.shutdown(wait=False)


def _looked_at(job: "asyncio.Future[bytes]") -> None:
    """Nobody may be left to see how a job ends that was given up."""
    if not job.cancelled() and (error := job.exception()) is not None and not isinstance(error, (Abandoned, Refused)):
        logger.debug("a sound was not decoded: %r", error)
