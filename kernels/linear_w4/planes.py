"""Quantised weights unpacked into aligned planes, the layout that the kernels of this folder read.

A weight [N, K] is cut along K into blocks of 128. For one block and one row these words are adjacent:

    int16 word w, w = 0…31:  codes of k = w | k = 32 + w | k = 64 + w | k = 96 + w
                             bits  0…3        4…7          8…11          12…15

The words of 32 columns, shifted and masked, are then four operands of a matrix multiplication that each meet 32
consecutive columns of x, two weights to an instruction. A tile of rows of one block is one contiguous piece of memory.
A value is

    scale(group, n) · (code(n, k) - offset) + minimum(group, n)

K is padded to whole blocks; x counts as zero there.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

BLOCK = 128
"""Columns per block."""
WORDS = 32
"""16-bit words of a row of a block, with four-bit codes."""
SUPER = 256
"""Columns that share a scale of scales."""


@dataclass(frozen=True)
class Planes:
    """The planes of a weight. Scales, zeros and minima are stored [groups, N]; their factors, as codes, [blocks, N, …],
    so that one load brings four."""

    label: str
    """The format's name in tuning tables, such as ``int4g128``."""
    bits: Literal[4, 6, 8]
    group: int
    """Columns that share a scale: 16, 32, 64, 128, or 0 if a row has one."""
    offset: int
    """Subtracted from the codes if there are no :attr:`zeros`."""
    codes: Tensor
    """int16 [blocks, N, 32], the low four bits; for eight bits int8 [blocks, N, 128], in order."""
    scales: Tensor
    """float [groups, N]; with :attr:`sub_scales` one for each 256 columns."""
    shape: tuple[int, int]
    """(N, K)"""
    zeros: Tensor | None = None
    """uint8 [groups, N]"""
    high: Tensor | None = None
    """uint8 [blocks, N, 32], bits 4 and 5 of the four codes of a word, lowest first."""
    sub_scales: Tensor | None = None
    """[blocks, N, 128 / group], factors of ``scales`` (:func:`pack_factors`): int8 in groups of 16, else uint8."""
    mins: Tensor | None = None
    """float, the shape of ``scales``; added."""
    sub_mins: Tensor | None = None
    """uint8 [blocks, N, 128 / group], factors of ``mins``, which then are subtracted."""

    @property
    def blocks(self) -> int:
        return self.codes.shape[0]


def blocks_of(columns: int) -> int:
    return -(-columns // BLOCK)


def padded_groups(columns: int, group: int) -> int:
    """Returns the rows of a plane of scales: enough for whole blocks; one without groups."""
    return 1 if group == 0 else max(1, blocks_of(columns) * BLOCK // group)


def pack_codes(codes: Tensor) -> Tensor:
    """Packs four-bit codes uint8 [N, K] → int16 [blocks, N, 32]."""
    lanes = _by_lane(codes)  # [N, blocks, 4, 32]
    low, high = lanes[:, :, 0] | (lanes[:, :, 1] << 4), lanes[:, :, 2] | (lanes[:, :, 3] << 4)
    words = torch.stack((low, high), dim=-1).view(torch.int16).squeeze(-1)  # little-endian: low byte first
    return words.transpose(0, 1).contiguous()


def unpack_codes(words: Tensor, columns: int) -> Tensor:
    """Reverses :func:`pack_codes`: uint8 [N, columns]."""
    low, high = words.transpose(0, 1).contiguous().unsqueeze(-1).view(torch.uint8).unbind(-1)
    lanes = torch.stack((low & 15, low >> 4, high & 15, high >> 4), dim=2)
    return lanes.flatten(1)[:, :columns]


def pack_pairs(codes: Tensor) -> Tensor:
    """Packs two-bit codes uint8 [N, K] → uint8 [blocks, N, 32]."""
    lanes = _by_lane(codes)
    packed = lanes[:, :, 0] | (lanes[:, :, 1] << 2) | (lanes[:, :, 2] << 4) | (lanes[:, :, 3] << 6)
    return packed.transpose(0, 1).contiguous()


def unpack_pairs(packed: Tensor, columns: int) -> Tensor:
    """Reverses :func:`pack_pairs`: uint8 [N, columns]."""
    rows = packed.transpose(0, 1)
    lanes = torch.stack((rows & 3, (rows >> 2) & 3, (rows >> 4) & 3, rows >> 6), dim=2)
    return lanes.flatten(1)[:, :columns]


def pack_groups(rows: Tensor, columns: int, group: int) -> Tensor:
    """Transposes the values of groups, [N, groups] → [groups, N], padded with zeros to whole blocks."""
    plane = rows.new_zeros((padded_groups(columns, group), rows.shape[0]))
    plane[: rows.shape[1]] = rows.T
    return plane


def pack_factors(rows: Tensor, columns: int, group: int) -> Tensor:
    """Packs the bytes of groups, [N, groups] → [blocks, N, 128 / group], padded with zeros to whole blocks.

    Each four adjacent bytes belong to the four column groups. In groups of 16 the first four are those of the column
    groups' first halves.
    """
    each = BLOCK // group
    plane = pack_groups(rows, columns, group).view(-1, 4, each // 4, rows.shape[0])
    return plane.permute(0, 3, 2, 1).flatten(2).contiguous()


def unpack_factors(factors: Tensor, columns: int, group: int) -> Tensor:
    """Reverses :func:`pack_factors`: [N, groups]."""
    rows: Tensor = factors.unflatten(2, (-1, 4)).permute(1, 0, 3, 2).flatten(1)
    return rows[:, : columns // group]


def _by_lane(codes: Tensor) -> Tensor:
    rows, columns = codes.shape
    padding = blocks_of(columns) * BLOCK - columns
    return torch.nn.functional.pad(codes, (0, padding)).view(rows, -1, BLOCK // WORDS, WORDS)
