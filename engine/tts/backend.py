"""What a speech model offers, whatever it is made of."""

import threading
from collections.abc import Callable
from typing import Protocol

from stentor.protocols.ipc.speech import VoicePlace


class Stopped(Exception):
    """The work was given up because nobody wants it any more."""


class CannotSpeak(Exception):
    """The text says why: in one line, for the operator or for who asked."""


class Stop:
    """Ends one piece of work from another thread."""

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
        """Calls ``action``, which must be quick, when the work shall end: at once where it shall already."""
        with self._lock:
            self._action = action
            if self._set:
                action()


class Synthesizer(Protocol):
    """Voices that have been loaded. One thread calls it."""

    def speak(self, text: str, voice: VoicePlace, speed: float, stop: Stop) -> bytes:
        """One sentence as pcm; empty where there is nothing to say.

        Raises :class:`Stopped` once ``stop`` is set, and :class:`CannotSpeak`.
        """
