"""What dialects without items tell of time and text: places on one timeline, and transcripts that join."""

import time


class Timeline:
    """Milliseconds since the session started.

    Input has the time of its arrival, except that audio that arrives faster than it was spoken moves the timeline on,
    so that the order of what was said and answered is kept.
    """

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._input_ms = 0.0
        """Audio received so far."""
        self._offset = 0.0
        """The place of its first sample, gaps in its arrival included."""

    @property
    def now(self) -> int:
        return int(max(self._elapsed, self._offset + self._input_ms))

    @property
    def _elapsed(self) -> float:
        return (time.monotonic() - self._start) * 1000

    def take_input(self, ms: float) -> None:
        """More input has arrived."""
        self._offset = max(self._offset, self._elapsed - self._input_ms - ms)
        self._input_ms += ms

    def place(self, input_ms: int) -> int:
        """The place of a position in the input."""
        return int(self._offset) + input_ms


class JoinedTranscript:
    """Transcripts of several turns or answers in one stream, each set apart by a space."""

    def __init__(self) -> None:
        self._begun = False

    def shown(self, delta: str, *, begins: bool) -> str:
        """What to send for ``delta``, which is not empty; ``begins``: another turn or answer begins with it."""
        apart = begins and self._begun and not delta[0].isspace()
        self._begun = True
        return f" {delta}" if apart else delta
