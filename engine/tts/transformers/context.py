"""Convolutional codecs whose frames depend on some before and behind them: they are decoded in stretches with both."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch


class ContextDecoder:
    """Decodes one sentence: a :class:`.frames.FrameDecoder`."""

    def __init__(self, decode: Callable[[Any], Any], context: int, samples: int) -> None:
        """``decode``: frames, [1, frames, …], to samples, [frames · ``samples``]; a sample depends on its own frame and
        ``context`` ones on either side."""
        self._decode = decode
        self._context = context
        self._samples = samples
        self._frames: Any = None
        """Those whose samples have not been returned, behind as many as :attr:`_before`."""
        self._before = 0

    def push(self, frames: Any) -> Any:
        self._frames = frames if self._frames is None else torch.cat([self._frames, frames], dim=1)
        return self._take(self._frames.shape[1] - self._before - self._context)

    def finish(self) -> Any:
        return torch.empty(0) if self._frames is None else self._take(self._frames.shape[1] - self._before)

    def _take(self, count: int) -> Any:
        """The samples of the next ``count`` frames."""
        if count <= 0:
            return torch.empty(0)
        begin, end = self._before, self._before + count
        wave = self._decode(self._frames)[begin * self._samples : end * self._samples]
        self._before = min(end, self._context)
        self._frames = self._frames[:, end - self._before :]
        return wave


def dac_context(ratios: Sequence[int]) -> int:
    """Frames on either side that a sample of DAC's decoder depends on; ``ratios``: of its upsampling, in their order.

    From the last convolution to the first: 7 wide; in each block three of 7 with dilations 1, 3 and 9, and a transposed
    one of twice its stride.
    """
    positions = 3
    for ratio in reversed(ratios):
        positions = math.ceil((positions + 3 * (1 + 3 + 9)) / ratio) + 1
    return positions + 3
