"""GGUF's block types of 256 values that are an integer code, times an integer scale for each 16, times a factor.

Types whose codes stand for vectors of a table (:mod:`.gguf_grids`) are read into the integers of the vectors.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import torch

from stentor.kernels import tables

from .gguf_grids import grid

SPAN: Final = 256
"""Values of a block."""
GROUP: Final = 16
"""Values that share a scale."""


class BlockCodes(NamedTuple):
    """value = factor · scale · code"""

    codes: torch.Tensor
    """int8 [blocks, 256]"""
    scales: torch.Tensor
    """int8 [blocks, 16]"""
    factors: torch.Tensor
    """float32 [blocks, 1]"""

    def values(self) -> torch.Tensor:
        """float32 [blocks, 256]"""
        scaled = (self.factors * self.scales).unsqueeze(2)
        return (scaled * self.codes.view(-1, SPAN // GROUP, GROUP)).flatten(1)


def read_codes(blocks: torch.Tensor, kind: str) -> BlockCodes:
    """The codes in blocks of one of :data:`CODED_BLOCKS`, uint8 [blocks, bytes of a block]."""
    return _READERS[kind].read(blocks)


def block_bytes(kind: str) -> int:
    """Bytes of a block of one of :data:`CODED_BLOCKS`."""
    return _READERS[kind].nbytes


def _half(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """The float16 at byte ``start`` of every block, float32 [blocks, 1]."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _words(packed: torch.Tensor, size: int) -> torch.Tensor:
    """uint8 [blocks, n · size] → little-endian numbers, int64 [blocks, n]"""
    places = torch.tensor([256**place for place in range(size)])
    return (packed.unflatten(1, (-1, size)).long() * places).sum(2)


def _fields(packed: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """[..., n] → ``count`` numbers of so many bits of each, lowest first, [..., n, count]"""
    return packed.unsqueeze(-1) >> torch.arange(0, bits * count, bits).to(packed.dtype) & (1 << bits) - 1


def _planes(packed: torch.Tensor, bits: int, width: int) -> torch.Tensor:
    """uint8 [blocks, n · width] → the lowest bits of ``width`` bytes, then the next: [blocks, n · 8 / bits · width]"""
    return _fields(packed.unflatten(1, (-1, width)), bits, 8 // bits).transpose(2, 3).flatten(1)


def _negated(points: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
    """int8 [blocks, n, 8] with the signs of bits, [blocks, n] → int8 [blocks, 8n]"""
    return torch.where(_fields(signs, 1, 8) == 1, -points, points).flatten(1)


def _even(signs: torch.Tensor) -> torch.Tensor:
    """Seven signs → eight of even parity."""
    return signs | _fields(signs, 1, 7).sum(-1) % 2 << 7


def _spread(scales: torch.Tensor) -> torch.Tensor:
    """Scales [blocks, n] of equal parts of a block → int8 [blocks, 16]"""
    return scales.repeat_interleave(SPAN // GROUP // scales.shape[1], 1).to(torch.int8)


def _ones(blocks: torch.Tensor) -> torch.Tensor:
    return torch.ones(len(blocks), SPAN // GROUP, dtype=torch.int8)


def _q3_k(blocks: torch.Tensor) -> BlockCodes:
    high, low, packed = blocks[:, :32], blocks[:, 32:96], blocks[:, 96:108]
    codes = _planes(low, 2, 32) | _planes(high, 1, 32) << 2
    scales = _planes(packed[:, :8], 4, 8) | _planes(packed[:, 8:], 2, 4) << 4
    return BlockCodes(codes.to(torch.int8) - 4, scales.to(torch.int8) - 32, _half(blocks, 108))


def _iq4_xs(blocks: torch.Tensor) -> BlockCodes:
    high = _fields(_words(blocks[:, 2:4], 2), 2, 8).flatten(1)
    low = _fields(blocks[:, 4:8], 4, 2).flatten(1)
    values = torch.tensor(tables.IQ4_NL, dtype=torch.int8)
    codes = values[_planes(blocks[:, 8:], 4, 16).int()]
    return BlockCodes(codes, _spread((low | high << 4) - 32), _half(blocks, 0))


def _tq1_0(blocks: torch.Tensor) -> BlockCodes:
    """Five ternary digits to a byte, the first times 256 / 3; four to the last ones."""
    parts = [
        (blocks[:, start:stop].unflatten(1, (-1, 1, width)) * (3 ** torch.arange(digits, dtype=torch.uint8))[:, None])
        for start, stop, width, digits in ((0, 32, 32, 5), (32, 48, 16, 5), (48, 52, 4, 4))
    ]
    digits = torch.cat([part.flatten(1) for part in parts], 1).int() * 3 >> 8
    return BlockCodes(digits.to(torch.int8) - 1, _ones(blocks), _half(blocks, 52))


def _tq2_0(blocks: torch.Tensor) -> BlockCodes:
    return BlockCodes(_planes(blocks[:, :64], 2, 32).to(torch.int8) - 1, _ones(blocks), _half(blocks, 64))


def _iq2_xxs(blocks: torch.Tensor) -> BlockCodes:
    """Of 32 values: four points, and a word of four times seven signs and a scale."""
    words = _words(blocks[:, 2:], 8)
    points = grid("IQ2_XXS")[_fields(words, 8, 4).flatten(1)]
    signs = _even(_fields(words >> 32, 7, 4).flatten(1))
    scales = 2 * (words >> 60 & 15) + 1
    return BlockCodes(_negated(points, signs), _spread(scales), _half(blocks, 0) / 8)


def _iq2_xs(blocks: torch.Tensor) -> BlockCodes:
    """Words of a point and seven signs, then scales."""
    words = _words(blocks[:, 2:66], 2)
    points, signs = grid("IQ2_XS")[words & 511], _even(words >> 9)
    scales = 2 * _fields(blocks[:, 66:], 4, 2).flatten(1) + 1
    return BlockCodes(_negated(points, signs), _spread(scales), _half(blocks, 0) / 8)


def _iq2_s(blocks: torch.Tensor) -> BlockCodes:
    low, signs = blocks[:, 2:34].long(), blocks[:, 34:66]
    high = _fields(blocks[:, 66:74], 2, 4).flatten(1).long()
    scales = 2 * _fields(blocks[:, 74:], 4, 2).flatten(1) + 1
    return BlockCodes(_negated(grid("IQ2_S")[low | high << 8], signs), _spread(scales), _half(blocks, 0) / 8)


def _iq3_xxs(blocks: torch.Tensor) -> BlockCodes:
    """Points of four values, then for 32 values a word of four times seven signs and a scale."""
    words = _words(blocks[:, 66:], 4)
    points = grid("IQ3_XXS")[blocks[:, 2:66].long()].unflatten(1, (-1, 2)).flatten(2)
    signs = _even(_fields(words, 7, 4).flatten(1))
    return BlockCodes(_negated(points, signs), _spread(2 * (words >> 28) + 1), _half(blocks, 0) / 4)


def _iq3_s(blocks: torch.Tensor) -> BlockCodes:
    low, signs = blocks[:, 2:66].long(), blocks[:, 74:106]
    high = _fields(blocks[:, 66:74], 1, 8).flatten(1).long()
    points = grid("IQ3_S")[low | high << 8].unflatten(1, (-1, 2)).flatten(2)
    scales = 2 * _fields(blocks[:, 106:], 4, 2).flatten(1) + 1
    return BlockCodes(_negated(points, signs), _spread(scales), _half(blocks, 0))


def _iq1_s(blocks: torch.Tensor) -> BlockCodes:
    """Points of -1, 0 and 1, all shifted by an eighth up or down."""
    words = _words(blocks[:, 34:], 2)
    high = _fields(words, 3, 4).flatten(1)
    shifts = (1 - 2 * (words >> 15)).repeat_interleave(4, 1)
    return BlockCodes(
        _shifted(blocks[:, 2:34].long() | high << 8, shifts),
        _spread(2 * (words >> 12 & 7) + 1),
        _half(blocks, 0) / 8,
    )


def _iq1_m(blocks: torch.Tensor) -> BlockCodes:
    """As IQ1_S, with a shift for each point; the factor is spread over the highest bits of the words of scales."""
    high, words = blocks[:, 32:48], _words(blocks[:, 48:], 2)
    codes = blocks[:, :32].long() | _fields(high, 4, 2).flatten(1).long() << 8 & 0x700
    shifts = 1 - 2 * (_fields(high, 4, 2).flatten(1).long() >> 3)
    factors = (words >> 12 << torch.arange(0, 16, 4)).sum(1, keepdim=True).to(torch.int16).view(torch.float16).float()
    return BlockCodes(_shifted(codes, shifts), (2 * _fields(words, 3, 4).flatten(1) + 1).to(torch.int8), factors / 8)


def _shifted(codes: torch.Tensor, shifts: torch.Tensor) -> torch.Tensor:
    """Eight times the points of codes [blocks, 32], plus shifts of -1 or 1 → int8 [blocks, 256]"""
    return (8 * grid("IQ1_S")[codes] + shifts.unsqueeze(2)).flatten(1).to(torch.int8)


class _Reader(NamedTuple):
    nbytes: int
    """Bytes of a block."""
    read: Callable[[torch.Tensor], BlockCodes]


_READERS: Final[Mapping[str, _Reader]] = {
    "Q3_K": _Reader(110, _q3_k),
    "IQ4_XS": _Reader(136, _iq4_xs),
    "TQ1_0": _Reader(54, _tq1_0),
    "TQ2_0": _Reader(66, _tq2_0),
    "IQ2_XXS": _Reader(66, _iq2_xxs),
    "IQ2_XS": _Reader(74, _iq2_xs),
    "IQ2_S": _Reader(82, _iq2_s),
    "IQ3_XXS": _Reader(98, _iq3_xxs),
    "IQ3_S": _Reader(110, _iq3_s),
    "IQ1_S": _Reader(50, _iq1_s),
    "IQ1_M": _Reader(56, _iq1_m),
}

CODED_BLOCKS: Final = tuple(_READERS)
"""Types by ggml's names."""
