"""Limits how long media delay decoding rows: seconds for slices, tokens for prompts with media."""

from collections.abc import Container, Sequence
from typing import Final

from stentor.protocols.ipc.steps import RowStep

from ...layers.linear.parts import Pace

_SHARE: Final = 0.2
"""Share of a decoding step that a slice may add. Caches and the media process add more: on two cores a step takes a
third longer in all."""
_PROMPT_SHARE: Final = 0.25
"""Share of a decoding step that a prompt with media may add. A pass with media has a fixed cost, so a smaller share
would need more such passes, and slices would lengthen some of them."""
_BESIDE_PROMPTS: Final = 0.1
"""Share that a slice may add to a step with prompts of text, which take longer by themselves."""
_ALONE_SECONDS: Final = 0.05
"""Seconds of slices in a step without rows; a new request waits for two such steps."""
_AMONG_MEDIA: Final = 0.1
"""Seconds of slices beside rows that all have media. These decode at reading speed, and together; with shorter slices
each would decode alone and read all weights for one row."""
_FIRST_PACE: Final = 0.02
"""Assumed seconds of a decoding step before the first."""
_FADE: Final = 0.9
_FIRST_ROOM: Final = 16
"""Assumed tokens of prompts before any ran beside decoding rows."""
_LEAST_ROOM: Final = 4
_MOST_GROWTH: Final = 2
"""Limit relative to the most tokens seen lately: the cost of few says little of many, since a decoding step waits for
memory and has time to multiply."""


class MediaTime:
    """Learns from a worker's steps how long they take."""

    def __init__(self) -> None:
        self.pace = Pace()
        """Pace of encoding."""
        self._decode = _FIRST_PACE
        """Seconds of a step with decoding rows only."""
        self._tokens = self._seconds = 0.0
        """Tokens of prompts with media beside decoding rows, and the seconds that they added; both fade."""
        self._most = 0.0
        """Most of these tokens in one step; fades."""
        self._prompts = self._texts = self._decodes = 0
        """This step's tokens of prompts with media and of others, and its decoding rows."""
        self._encoding = 0.0

    def begin(self, rows: Sequence[RowStep], seeing: Container[int]) -> float | None:
        """Begin a step of these rows; slots in ``seeing`` have media. Returns seconds for slices; None: no slices in
        this step."""
        decoding = [row.slot for row in rows if row.count == 1]
        self._decodes = len(decoding)
        self._prompts = sum(row.count for row in rows if row.count > 1 and row.slot in seeing)
        self._texts = sum(row.count for row in rows if row.count > 1) - self._prompts
        self._encoding = 0.0
        if not rows:
            return _ALONE_SECONDS
        if self._decodes and self._prompts:
            return None
        if self._prompts or self._texts:
            return self._decode * _BESIDE_PROMPTS
        if all(slot in seeing for slot in decoding):
            return _AMONG_MEDIA
        return self._decode * _SHARE

    def encoded(self, seconds: float) -> None:
        """Record the seconds of the step's encodings."""
        self._encoding = seconds

    def end(self, seconds: float) -> None:
        """Record the seconds of the whole step."""
        own = seconds - self._encoding
        if not self._decodes:
            return
        if not self._prompts:
            if not self._texts:
                self._decode = _FADE * self._decode + (1 - _FADE) * own
            return
        if self._texts:  # their cost is unknown
            return
        self._tokens = _FADE * self._tokens + self._prompts
        self._seconds = _FADE * self._seconds + max(0.0, own - self._decode)
        self._most = max(_FADE * self._most, self._prompts)

    @property
    def room(self) -> int:
        """Tokens of prompts with media that add no more than their share to a decoding step."""
        if not self._tokens:
            return _FIRST_ROOM
        most = _MOST_GROWTH * self._most
        if self._seconds > 0:
            most = min(most, _PROMPT_SHARE * self._decode * self._tokens / self._seconds)
        return max(_LEAST_ROOM, int(most))
