"""The owner's side of a child that decodes audio.

FFmpeg decodes clients' files in C, with a history of vulnerabilities. So it runs in a child with limits on memory and
time that cannot open anything, and that is replaced when it dies or is late.
"""

import socket
import time
from typing import Final

import msgspec

from ..sandbox.child import receive, send, wait_until_ready
from ..sandbox.killable_child import ChildDied, KillableChild, Starved

MODULE: Final = "stentor.server.audio.decode_child"
RATE: Final = 16_000
"""Output samples a second."""
BROKEN: Final = "invalid_audio"
TOO_LONG: Final = "audio_too_long"
TOO_SLOW: Final = "it takes too long to decode"
_SILENT_SECONDS: Final = 15.0
"""Between two answers; the child ends itself sooner where it is the one that is slow."""


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
    """The child has grown and asks to be replaced."""


class Refused(Exception):
    """``str(refused)`` describes the fault of the file, for the client."""

    def __init__(self, why: str, code: str = BROKEN) -> None:
        super().__init__(why)
        self.code = code


class DecodeProcess(KillableChild):
    def __init__(self, max_seconds: float, timeout: float) -> None:
        """``max_seconds`` of a decoded sound, of which a further one refuses it; ``timeout`` in seconds for each."""
        self._max_seconds = max_seconds
        self._timeout = timeout
        super().__init__(MODULE, "a decoder process", wait_until_ready)

    def decode(self, data: bytes) -> bytes:
        """The pcm. Blocks. Raises :class:`Refused`, and Abandoned, Starved and ChildNotStarted as :meth:`ask` does."""

        def exchange(connection: socket.socket, deadline: float) -> tuple[list[bytes], DecodedPart]:
            send(connection, DecodeJob(data, self._max_seconds))
            pieces: list[bytes] = []
            while True:
                answer = receive(connection, DecodedPart, min(deadline, time.monotonic() + _SILENT_SECONDS))
                pieces.append(answer.pcm)
                if answer.done:
                    return pieces, answer

        try:
            pieces, last = self.ask(exchange, self._timeout)
        except ChildDied:
            raise Refused("the decoder does not survive it") from None
        except Starved:
            raise
        except TimeoutError:
            raise Refused(TOO_SLOW) from None
        if last.worn:
            self.close()
        if last.why:
            raise Refused(last.why, last.code)
        return b"".join(pieces)
