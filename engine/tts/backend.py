"""The interface of speech models."""

import threading
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from stentor.protocols.ipc.speech import VoicePlace


class Stopped(Exception):
    """The work was cancelled."""


class CannotSpeak(Exception):
    """Synthesis is impossible; the message is one line for the operator or client."""


class Stop:
    """Cancels one piece of work from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._action: Callable[[], None] | None = None
        self._set = False

    @property
    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        with self._lock:
            self._set = True
            if self._action is not None:
                self._action()

    def then(self, action: Callable[[], None]) -> None:
        """Call ``action``, which must be quick, on cancellation; at once if it has happened."""
        with self._lock:
            self._action = action
            if self._set:
                action()


Part = Callable[[bytes], None]


def keep_whole(_pcm: bytes) -> None:
    """The default ``part``, which ignores parts: for voices that make a sentence at once."""


@runtime_checkable
class Synthesizer(Protocol):
    """Loaded voices. Used by one thread."""

    def speak(self, text: str, voice: VoicePlace, speed: float, stop: Stop, part: Part = keep_whole, /) -> bytes:
        """Synthesize one sentence to PCM; empty if there is nothing to say.

        A voice that makes audio bit by bit passes it to ``part`` and returns the rest. It makes equal samples of equal
        text: after a crash, what has been heard is left out.

        Raises :class:`Stopped` once ``stop`` is set, and :class:`CannotSpeak`.
        """


@runtime_checkable
class CodecDecoder(Protocol):
    """A loaded codec. Used by one thread."""

    def decode(self, codes: Sequence[int], first: int, skip: int, keep: int, stop: Stop) -> bytes:
        """Decode whole frames to PCM, of which ``keep`` frames are returned after ``skip`` others; ``first`` is the
        number of the first frame in its sentence.

        Raises :class:`Stopped` once ``stop`` is set, and :class:`CannotSpeak`.
        """
