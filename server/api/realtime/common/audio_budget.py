"""The memory of callers' audio in all realtime sessions, until it is no longer needed.

::

    HeldAudio          of the server
      AudioShare       of one session: released when it ends, however it does
        AudioBudget    of one object with audio, which sets its bytes

The limit of one session does not bound all sessions together. Audio is counted wherever it is stored: in the input
buffer in both formats, again in its turn during transcription, and in items. Pictures in items count as audio does.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from ....common.errors import Overloaded

RESERVED: Final = 0.25
"""Fraction reserved for sessions with no more than their part of it, so that large sessions do not block others."""
_RETRY_SECONDS: Final = 5


class AudioFull(Overloaded):
    """New audio is refused; stored audio is kept."""

    def __init__(self, most: float, field: str = "audio") -> None:
        message = (
            f"`{field}`: the realtime sessions of this server hold as much audio as they may (of "
            f"{most / (1 << 20):.0f} MiB, with images). Commit, clear or delete what is yours, or send this again "
            "later."
        )
        super().__init__(message, "realtime_audio_full", _RETRY_SECONDS)


class HeldAudio:
    """Counts the bytes of audio held for all sessions, and refuses those beyond a bound. Only its shares change it."""

    def __init__(self, most: float = math.inf, on_refused: Callable[[], object] = lambda: None) -> None:
        """``most`` in bytes; ``on_refused`` is called when a session is refused more."""
        self._most = most
        self._on_refused = on_refused
        self.bytes = 0
        """Bytes stored, or reserved for audio being received."""
        self._sessions = 0

    def share(self) -> "AudioShare":
        """The share of one session, until the block around it ends."""
        return AudioShare(self)

    def _check(self, size: int, own: int, field: str) -> None:
        small = (own + size) * self._sessions <= self._most * RESERVED
        if self.bytes + size > self._most * (1 if small else 1 - RESERVED):
            self._on_refused()
            raise AudioFull(self._most, field)


class AudioShare(AbstractContextManager["AudioShare"]):
    """The audio of one session."""

    def __init__(self, held: HeldAudio) -> None:
        self._held = held
        self._closed = False
        self.bytes = 0
        held._sessions += 1

    def check(self, size: int, field: str = "audio") -> None:
        """Raises AudioFull if there is no room for ``size`` more bytes in ``field``."""
        self._held._check(size, self.bytes, field)

    def hold(self) -> "AudioBudget":
        return AudioBudget(self)

    def close(self) -> None:
        """Ends the session's share. May be called again; later changes of its holds do not count."""
        if not self._closed:
            self._change(-self.bytes)
            self._closed = True
            self._held._sessions -= 1

    def _change(self, by: int) -> None:
        if not self._closed:
            self.bytes += by
            self._held.bytes += by

    def __exit__(self, *_error: object) -> None:
        self.close()


class AudioBudget:
    """Owned by an object with audio, which must set 0 before it is dropped."""

    __slots__ = ("_share", "bytes")

    def __init__(self, share: AudioShare) -> None:
        self._share = share
        self.bytes = 0

    def set(self, size: int) -> None:
        """Sets the number of bytes."""
        self._share._change(size - self.bytes)
        self.bytes = size


def unbounded() -> AudioShare:
    """A share without a bound, for a session that shares nothing."""
    return HeldAudio().share()
