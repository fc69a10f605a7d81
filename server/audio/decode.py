"""Decodes clients' audio files to samples, in child processes, off the event loop.

::

    sound = await decoder.decode(data, "file")         # BadRequest names the field
    sound.pcm                                          # signed 16 bits, little-endian, one channel, at 16 000 Hz
"""

import logging
import weakref
from typing import Final

import msgspec

from stentor.protocols.common.errors import BadRequest

from ..common.errors import Overloaded, ServerError
from ..common.fair_queue import QueueFull
from ..config.limits import AudioLimits
from ..overload.process_pool import PoolClosed, ProcessPool
from ..sandbox.killable_child import Abandoned, ChildNotStarted, Starved
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


class Decoded(msgspec.Struct, frozen=True, weakref=True):
    """Decoded audio. Its memory is released when it is no longer referenced."""

    pcm: bytes
    """Signed 16 bits, little-endian, one channel, at :data:`SAMPLE_RATE`; never empty."""

    @property
    def seconds(self) -> float:
        return len(self.pcm) / BYTES_PER_SECOND


class AudioDecoder:
    """Decodes audio for one event loop. Must be closed.

    A fixed number of files is decoded at a time, each in its own process; others wait in a bounded queue, and owners
    take turns. Large files never have all processes, so that small ones need not wait for them. A file whose caller has
    gone is dropped.
    """

    def __init__(self, limits: AudioLimits = _DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._pool = ProcessPool(
            lambda: DecodeProcess(limits.max_seconds, limits.timeout),
            processes=limits.processes,
            max_waiting=limits.max_waiting,
            thread_name="audio",
            large_bytes=_LARGE_BYTES,
        )
        self.held = 0
        """Bytes of pcm that callers hold."""

    @property
    def max_bytes(self) -> int:
        """Bytes of one file."""
        return self._limits.max_bytes

    @property
    def pids(self) -> list[int]:
        """Pids of its processes."""
        return self._pool.pids

    def warm_up(self) -> None:
        """Starts the first process before the first file. Returns at once."""
        self._pool.warm_up()

    async def decode(self, data: bytes, field: str = "file") -> Decoded:
        """The first audio stream of a file: wav, mp3, m4a, mp4, ogg, opus, flac, webm, aac and some more.

        Raises BadRequest naming ``field`` (400: unknown format, broken or too long; 413: too many bytes),
        :class:`..common.errors.Overloaded` if the queue is full or too much decoded audio is held, and
        :class:`AudioUnavailable`. A truncated or damaged file gives its readable part.
        """
        limits = self._limits
        if len(data) > limits.max_bytes:
            message = f"`{field}`: the audio has {len(data)} bytes; this server takes at most {limits.max_bytes}."
            raise BadRequest(message, field, "audio_too_large", status=413)
        if not data:
            raise BadRequest(f"`{field}`: the audio is empty.", field, "invalid_audio")
        if self.held >= limits.max_held_seconds * BYTES_PER_SECOND:
            raise Overloaded("As much audio is being worked on as this server holds.", "audio_full", _RETRY_SECONDS)
        try:
            pcm = await self._pool.run(lambda process: process.decode(data), len(data))
        except QueueFull:
            raise Overloaded(
                "Too many sounds wait to be decoded; try again shortly.", "audio_full", _RETRY_SECONDS
            ) from None
        except Refused as refused:
            raise BadRequest(f"`{field}`: the audio: {refused}.", field, refused.code) from None
        except Starved:
            message = "The machine is too busy to decode audio; try again shortly."
            raise Overloaded(message, "audio_full", _RETRY_SECONDS) from None
        except (Abandoned, PoolClosed):
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

    def close(self) -> None:
        """Ends the processes and their jobs; waiters get :class:`AudioUnavailable`. May be called again."""
        self._pool.close()
