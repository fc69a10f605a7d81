"""Codes that a model writes with a delay for each codebook: a step has codes of several frames."""

from collections.abc import Sequence
from typing import Any

import torch

from .frames import FrameParts


class DelayedCodes:
    """Takes steps, and passes on each frame once its last code is there."""

    def __init__(self, parts: FrameParts, delays: Sequence[int], end: int) -> None:
        """``delays``: in steps, of each codebook. The first codebook's code ``end`` stands behind the last frame."""
        self._parts = parts
        self._delays = delays
        self._longest = max(delays)
        self._end = end
        self._steps: list[Any] = []
        """The last ones, as many as a frame reaches over."""
        self._taken = 0
        """Steps so far."""
        self._frames: int | None = None
        """Of the sentence; None until they are known."""

    def take(self, codes: Any) -> None:
        """Take the codes of a step, [codebooks]. Raises :class:`..backend.Stopped`."""
        if self._frames is None and int(codes[0]) == self._end:
            self._frames = self._taken - self._delays[0]
        self._steps = [*self._steps[max(0, len(self._steps) - self._longest) :], codes]
        self._taken += 1
        frame = self._taken - 1 - self._longest
        if frame >= 0 and (self._frames is None or frame < self._frames):
            row = [self._steps[delay][codebook] for codebook, delay in enumerate(self._delays)]
            self._parts.take(torch.stack(row)[None])

    def rest(self) -> bytes:
        return self._parts.rest()
