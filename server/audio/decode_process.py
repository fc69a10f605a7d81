"""One child that decodes, as its owner sees it.

FFmpeg reads what clients bring in C, with a history of faults that a broken file sets off. So that happens in a child
with bounds on its memory and its time, which can open nothing, and which is replaced when it dies or is late.
"""

import signal
import socket
import threading
import time
import weakref
from typing import Final

import msgspec

from ..sandbox.child_channel import ChildChannel, receive, send

MODULE: Final = "stentor.server.audio.decode_child"
RATE: Final = 16_000
"""Samples a second of what comes out."""
BROKEN: Final = "invalid_audio"
TOO_LONG: Final = "audio_too_long"
TOO_SLOW: Final = "it takes too long to decode"
_START_SECONDS: Final = 60.0
_SILENT_SECONDS: Final = 15.0
"""Between two answers; the child ends itself sooner where it is the one that is slow."""
_END_SECONDS: Final = 5.0


class Ready(msgspec.Struct, frozen=True, array_like=True):
    """The first message of a child."""


class DecodeJob(msgspec.Struct, frozen=True, array_like=True):
    data: bytes
    max_seconds: float


class DecodedPart(msgspec.Struct, frozen=True, array_like=True):
    """To a job: some with pcm, and a last one."""

    pcm: bytes = b""
    done: bool = False
    why: str = ""
    """Why the sound cannot be used, to go on after "the audio:"; only in the last."""
    code: str = BROKEN
    worn: bool = False
    """The child has grown and wants to be replaced."""


class Refused(Exception):
    """``str(refused)`` says what is wrong with the sound, and may be shown."""

    def __init__(self, why: str, code: str = BROKEN) -> None:
        super().__init__(why)
        self.code = code


class Abandoned(Exception):
    """Nobody wants the result any more."""


class DecoderNotStarted(Exception):
    """No child can be started; the text says why."""


class _Died(Exception):
    """The child did, while it had a job."""


class DecodeProcess:
    """Owns at most one child: started for the first job, and again after one that it did not survive.

    One thread does all the calls but :meth:`abandon`. It must outlive the child (see ``engine.processes.process``).
    """

    def __init__(self, max_seconds: float, timeout: float) -> None:
        """``max_seconds`` of a decoded sound, of which a further one refuses it; ``timeout`` in seconds for each."""
        self._max_seconds = max_seconds
        self._timeout = timeout
        self._link: ChildChannel | None = None
        self._close_link: weakref.finalize[..., DecodeProcess] | None = None
        self._lock = threading.Lock()
        self._busy = False
        self._abandoned = False

    @property
    def pid(self) -> int | None:
        """Of the child, while there is one."""
        link = self._link
        return None if link is None else link.child.pid

    def decode(self, data: bytes) -> bytes:
        """The pcm. Blocks. Raises :class:`Refused`, :class:`Abandoned` and :class:`DecoderNotStarted`.

        Where the child dies the job is given to another one, once: what killed it may have been somebody else.
        """
        with self._lock:
            self._busy, self._abandoned = True, False
        try:
            try:
                return self._ask(data)
            except _Died:
                return self._ask(data)
        except _Died:
            raise Refused("the decoder does not survive it") from None
        except TimeoutError:
            raise Refused(TOO_SLOW) from None
        finally:
            with self._lock:
                self._busy = False

    def abandon(self) -> None:
        """Ends the job that is being done; from any thread. :meth:`decode` raises :class:`Abandoned`."""
        with self._lock:
            if not self._busy:
                return
            self._abandoned = True
            if self._link is not None:
                try:
                    self._link.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads
                except OSError:
                    return  # it is being closed

    def start(self) -> None:
        """Starts the child if there is none. Raises :class:`DecoderNotStarted`."""
        if self._link is not None:
            return
        try:
            link = ChildChannel(MODULE, "a decoder process")
        except OSError as error:
            raise DecoderNotStarted(f"no process can be started: {error.strerror}") from error
        with self._lock:
            self._link = link
        self._close_link = weakref.finalize(self, link.close)
        try:
            receive(link.socket, Ready, time.monotonic() + _START_SECONDS)
        except OSError as error:
            self.close()
            self._check_wanted()
            raise DecoderNotStarted("it ended at once, or was not ready in time") from error

    def _ask(self, data: bytes) -> bytes:
        """The child's answer. It is killed where none comes in time."""
        self.start()
        assert self._link is not None
        link, pieces = self._link, []
        try:
            self._check_wanted()
            deadline = time.monotonic() + self._timeout
            send(link.socket, DecodeJob(data, self._max_seconds))
            while True:
                answer = receive(link.socket, DecodedPart, min(deadline, time.monotonic() + _SILENT_SECONDS))
                pieces.append(answer.pcm)
                if answer.done:
                    break
        except BaseException as error:
            ended = link.child.wait_blocking(_END_SECONDS) if isinstance(error, ConnectionResetError) else None
            self.close()  # its answer would be taken for the next job's
            self._check_wanted()
            if ended == -signal.SIGPROF:
                raise Refused(TOO_SLOW) from None
            if isinstance(error, ConnectionError):
                raise _Died from error
            raise
        if answer.worn:
            self.close()
        if answer.why:
            raise Refused(answer.why, answer.code)
        return b"".join(pieces)

    def _check_wanted(self) -> None:
        with self._lock:
            if self._abandoned:
                raise Abandoned

    def close(self) -> None:
        """Kills the child, if there is one. May be called again; done when this object goes, too."""
        with self._lock:
            self._link = None
        if self._close_link is not None:
            self._close_link()
            self._close_link = None
