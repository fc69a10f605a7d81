"""How long media may hold up rows that decode: seconds for what is encoded, tokens of prompts that have been."""

from collections.abc import Container, Sequence
from typing import Final

from stentor.protocols.ipc.steps import RowStep

from ..layers.parts import Pace

_SHARE: Final = 0.2
"""Of a step that decodes, what a slice may add to it. Rows find less of what they read in the processor's caches
besides, and the media process takes a core now and then: on two cores a step takes a third longer in all."""
_PROMPT_SHARE: Final = 0.25
"""The same of prompts with media. A pass with media costs something of its own, however few their tokens: less time a
step would be more such steps, and with slices in them longer ones."""
_BESIDE_PROMPTS: Final = 0.1
"""The same of a slice in a step that computes prompts of text, which take longer than that by themselves."""
_ALONE_SECONDS: Final = 0.05
"""Of an encoding beside nobody: who comes meanwhile waits for two such steps."""
_AMONG_MEDIA: Final = 0.1
"""The same beside rows that have media themselves. They are told as fast as one reads, and decode together, where
shorter slices have each of a crowd decode by itself and read all weights for one row."""
_FIRST_PACE: Final = 0.02
"""Seconds of a step that decodes, while none has been seen."""
_FADE: Final = 0.9
_FIRST_ROOM: Final = 16
"""Tokens of prompts, while none have been seen beside rows that decode."""
_LEAST_ROOM: Final = 4
_MOST_GROWTH: Final = 2
"""Times the most tokens that were seen lately: what few cost says little of many, since a step that decodes waits for
memory and has time to multiply."""


class MediaTime:
    """Learns from the steps of a worker what they take."""

    def __init__(self) -> None:
        self.pace = Pace()
        """Of what encodes."""
        self._decode = _FIRST_PACE
        """Seconds that a step takes which decodes and nothing else."""
        self._tokens = self._seconds = 0.0
        """Of prompts with media beside rows that decode, and what they have added; both fade."""
        self._most = 0.0
        """Tokens of them in one step; fades."""
        self._prompts = self._texts = self._decodes = 0
        """Tokens of prompts with media and of others, and rows that decode, of this step."""
        self._encoding = 0.0

    def begin(self, rows: Sequence[RowStep], seeing: Container[int]) -> float | None:
        """A step begins with these rows, of which those in the slots ``seeing`` have media. Returns seconds for slices
        of what it encodes; None: none is for this step."""
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
        """So long has the step encoded."""
        self._encoding = seconds

    def end(self, seconds: float) -> None:
        """It took so long in all."""
        own = seconds - self._encoding
        if not self._decodes:
            return
        if not self._prompts:
            if not self._texts:
                self._decode = _FADE * self._decode + (1 - _FADE) * own
            return
        if self._texts:  # which cost something, too
            return
        self._tokens = _FADE * self._tokens + self._prompts
        self._seconds = _FADE * self._seconds + max(0.0, own - self._decode)
        self._most = max(_FADE * self._most, self._prompts)

    @property
    def room(self) -> int:
        """Tokens of prompts with media that add no more than their share to a step that decodes."""
        if not self._tokens:
            return _FIRST_ROOM
        most = _MOST_GROWTH * self._most
        if self._seconds > 0:
            most = min(most, _PROMPT_SHARE * self._decode * self._tokens / self._seconds)
        return max(_LEAST_ROOM, int(most))
