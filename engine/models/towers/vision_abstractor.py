"""Joins the patches of a picture by convolutions: the C-Abstractor (arXiv:2312.06742), of RegNet's blocks
(arXiv:2003.13678)."""

import math
from collections.abc import Sequence
from typing import Final

import torch

from ...layers.linear.layer_context import LayerContext
from ...layers.linear.weights import WeightMap
from ...model_config.towers.vision_spec import AbstractorSpec, squeezed_channels
from .vision_grids import Grid

_EPS: Final = 1e-5
Shape = tuple[int, int, int, int]


class Abstractor:
    """Convolutions within each picture, before and behind squares of patches are joined."""

    def __init__(self, weights: WeightMap, spec: AbstractorSpec, hidden: int, context: LayerContext) -> None:
        """``hidden``: size of a patch."""
        self._merge = spec.merge
        self._positions = None
        if spec.positions:
            self._positions = context.empty(spec.positions, hidden, dtype=torch.float32)
            weights.add(f"{spec.name}.pos_emb.weight", self._positions)
        blocks = [_Block(weights, name, inputs, spec.width, context) for name, inputs in spec.blocks(hidden)]
        self._before, self._behind = blocks[: spec.depth], blocks[spec.depth :]

    def __call__(self, x: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        """x [patches, hidden] of pictures with these rows and columns → a vector for each square [squares, width]."""
        pieces = x.split([math.prod(grid) for grid in grids])
        return torch.cat([self._picture(piece, grid) for piece, grid in zip(pieces, grids, strict=True)])

    def _picture(self, x: torch.Tensor, grid: Grid) -> torch.Tensor:
        # patches come square by square, and the makers' code takes them for rows
        image = x.view(1, *grid, x.shape[1]).permute(0, 3, 1, 2)
        if self._positions is not None:
            image = image + _resized(self._positions, grid).to(x.dtype)
        for block in self._before:
            image = block(image)
        side = self._merge
        image = image.unflatten(3, (-1, side)).unflatten(2, (-1, side)).permute(0, 1, 3, 5, 2, 4).flatten(1, 3)
        for block in self._behind:
            image = block(image)
        return image[0].flatten(1).T.contiguous()


def _resized(table: torch.Tensor, grid: Grid) -> torch.Tensor:
    """A learned square of positions [positions, hidden] → [1, hidden, rows, columns]."""
    side = math.isqrt(len(table))
    square = table.view(1, side, side, -1).permute(0, 3, 1, 2)
    if grid == (side, side):
        return square
    made: torch.Tensor = torch.nn.functional.interpolate(square, grid, mode="bicubic", antialias=True)
    return made


class _Block:
    """A bottleneck: two products around a convolution of each channel by itself, whose channels are weighed by their
    means over the picture. Its result is added to its input."""

    def __init__(self, weights: WeightMap, name: str, inputs: int, width: int, context: LayerContext) -> None:
        squeezed = squeezed_channels(inputs)
        self._first = _Convolution(weights, f"{name}.conv1", (width, inputs, 1, 1), context)
        self._apart = _Convolution(weights, f"{name}.conv2", (width, 1, 3, 3), context)
        self._last = _Convolution(weights, f"{name}.conv3", (width, width, 1, 1), context)
        self._beside: _Convolution | None = None
        if inputs != width:
            self._beside = _Convolution(weights, f"{name}.downsample", (width, inputs, 1, 1), context)
        self._squeeze = _pair(weights, f"{name}.se.fc1", (squeezed, width, 1, 1), context)
        self._open = _pair(weights, f"{name}.se.fc2", (width, squeezed, 1, 1), context)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [1, inputs, rows, columns] → [1, width, rows, columns]"""
        silu, convolved = torch.nn.functional.silu, torch.nn.functional.conv2d
        made = silu(self._apart(silu(self._first(x))))
        share = convolved(silu(convolved(made.mean((2, 3), keepdim=True), *self._squeeze)), *self._open)
        made = self._last(made * share.sigmoid())
        return silu(made + (x if self._beside is None else self._beside(x)))


class _Convolution:
    """A convolution without bias, and a norm of the channels of each place."""

    def __init__(self, weights: WeightMap, name: str, shape: Shape, context: LayerContext) -> None:
        self._weight = context.empty(*shape, dtype=context.stream)
        weights.add(f"{name}.conv.weight", self._weight)
        self._scale, self._shift = (context.empty(shape[0], dtype=context.stream) for _ in range(2))
        weights.add(f"{name}.bn.weight", self._scale)
        weights.add(f"{name}.bn.bias", self._shift)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        width, _, side, _ = self._weight.shape
        groups = width if side > 1 else 1
        made = torch.nn.functional.conv2d(x, self._weight, padding=side // 2, groups=groups).permute(0, 2, 3, 1)
        return torch.nn.functional.layer_norm(made, (width,), self._scale, self._shift, _EPS).permute(0, 3, 1, 2)


def _pair(weights: WeightMap, name: str, shape: Shape, context: LayerContext) -> tuple[torch.Tensor, torch.Tensor]:
    """A stored weight and its bias."""
    weight, bias = context.empty(*shape, dtype=context.stream), context.empty(shape[0], dtype=context.stream)
    weights.add(f"{name}.weight", weight)
    weights.add(f"{name}.bias", bias)
    return weight, bias
