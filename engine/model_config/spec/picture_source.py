"""Describes the encoder of an encoder-decoder's picture, whose modules are transformers'. Torch-free."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec


class Strided(NamedTuple):
    """A convolution along the sides of a picture."""

    kernel: int
    stride: int
    padding: int = 0
    down: bool = True
    """Whether it runs down too, and not along the width alone."""

    def of(self, side: int) -> int:
        """What it makes of a side."""
        return (side + 2 * self.padding - self.kernel) // self.stride + 1


class PictureSource(msgspec.Struct, frozen=True, kw_only=True):
    """From the pixels of one picture to states, to which a decoder attends or which an encoder of texts takes first."""

    made_by: str
    """transformers' class of the encoder, or ours (:mod:`...models.transformers.radio`)."""
    described: Mapping[str, object]
    """The config.json of that class."""
    channels: int
    sides: tuple[int, int]
    """Height and width in pixels of a picture; of the largest one if it is :attr:`free`."""
    steps: tuple[Strided, ...]
    """How pixels become states, along each side."""
    besides: int = 0
    """States of a picture besides those of its places."""
    free: bool = False
    """Whether a picture may have other sides than :attr:`sides`."""
    size: int
    """Numbers of a state."""
    projected: bool = False
    """Whether a product with a bias maps states to the decoder's hidden size."""

    @property
    def states(self) -> int:
        """Most states of a picture."""
        return self._grid(*self.sides)

    def states_of(self, channels: int, height: int, width: int) -> int:
        """States of a picture of these sides; 0 if it is none that the encoder takes."""
        if channels != self.channels or not (self.free or (height, width) == self.sides):
            return 0
        found = self._grid(height, width)
        return found if found <= self.states else 0

    def _grid(self, height: int, width: int) -> int:
        rows, columns = height, width
        for step in self.steps:
            rows, columns = step.of(rows) if step.down else rows, step.of(columns)
        return 0 if min(rows, columns) < 1 else self.besides + rows * columns
