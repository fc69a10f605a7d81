"""Four-bit weights in groups, in the layout that the kernels read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .planes import BLOCK, Planes, blocks_of, pack_codes, pack_groups, padded_groups, unpack_codes

GROUPS = (0, 32, 64, 128)
SYMMETRIC_ZERO = 8


@dataclass(frozen=True)
class W4Weight:
    """A weight [N, K] of four bits: value = scale · (code - zero), code in 0…15 (:mod:`.planes` draws the layout).

    Made by :meth:`from_codes`, or from a checkpoint's tensors by :mod:`.repack`.
    """

    codes: Tensor
    """int16 [ceil(K / 128), N, 32], columns in permuted order."""
    scales: Tensor
    """[groups, N], groups padded to whole blocks; float32, bfloat16 or float16 as in the checkpoint."""
    zeros: Tensor | None
    """uint8 [groups, N], 0…16; None if every zero is 8."""
    perm: Tensor | None
    """int32 [K]: stored column i multiplies column ``perm[i]`` of x (act-order); None if they are in order."""
    group: int
    """Columns of a group: 32, 64 or 128; 0 if a row is one group."""
    shape: tuple[int, int]
    """(N, K)"""

    @classmethod
    def from_codes(
        cls, codes: Tensor, scales: Tensor, *, group: int, zeros: Tensor | None = None, g_idx: Tensor | None = None
    ) -> "W4Weight":
        """Packs a weight.

        Args:
            codes: uint8 [N, K], 0…15, in the order of x's columns. K is a multiple of 8 and of ``group``.
            scales: float [N, groups].
            group: 32, 64 or 128 columns; 0 for one group per row.
            zeros: uint8 [N, groups], 0…16; None: 8.
            g_idx: the group of each column, integers [K], if they are not in order. Every group has ``group`` columns.

        Raises:
            ValueError: shapes or a group size that do not fit.
        """
        rows, columns = codes.shape
        if group == -1 or group == columns:
            group = 0
        if group not in GROUPS:
            raise ValueError(f"4-bit weights take groups of 32, 64 or 128 columns or one a row, not of {group}")
        if columns % 8 or (group and columns % group):
            raise ValueError(f"4-bit weights: {columns} columns are not whole groups of {group or 8}")
        groups = columns // group if group else 1
        for name, plane in (("scales", scales), ("zeros", zeros)):
            if plane is not None and plane.shape != (rows, groups):
                raise ValueError(f"4-bit weights: {name} are {tuple(plane.shape)}, expected {(rows, groups)}")
        perm = None if g_idx is None or group == 0 else _order(g_idx, columns, group)
        if perm is not None:
            codes = codes[:, perm]
        if zeros is not None and bool((zeros == SYMMETRIC_ZERO).all()):
            zeros = None
        return cls(
            codes=pack_codes(codes),
            scales=pack_groups(scales, columns, group),
            zeros=None if zeros is None else pack_groups(zeros.to(torch.uint8), columns, group),
            perm=None if perm is None else perm.to(torch.int32),
            group=group,
            shape=(rows, columns),
        )

    @classmethod
    def concat(cls, weights: Sequence["W4Weight"]) -> "W4Weight":
        """Concatenates the rows of projections of one input. The scales take the widest dtype of all.

        Raises:
            ValueError: they differ in K, in group size, or in the permutation of their columns.
        """
        first = weights[0]
        for other in weights[1:]:
            if (other.shape[1], other.group) != (first.shape[1], first.group):
                raise ValueError(
                    f"4-bit weights of {first.shape[1]} columns in groups of {first.group} and of {other.shape[1]} "
                    f"in groups of {other.group} cannot be one layer"
                )
            if not _same_order(first.perm, other.perm):
                raise ValueError(
                    "4-bit weights with different act-orders cannot be one layer: their columns are permuted "
                    "differently; keep these projections apart"
                )
        dtype = first.scales.dtype
        for other in weights[1:]:
            dtype = torch.promote_types(dtype, other.scales.dtype)
        zeros = None
        if any(weight.zeros is not None for weight in weights):
            zeros = torch.cat([_zeros(weight) for weight in weights], dim=1)
        return cls(
            codes=torch.cat([weight.codes for weight in weights], dim=1),
            scales=torch.cat([weight.scales.to(dtype) for weight in weights], dim=1),
            zeros=zeros,
            perm=first.perm,
            group=first.group,
            shape=(sum(weight.shape[0] for weight in weights), first.shape[1]),
        )

    def to(self, device: torch.device | str) -> "W4Weight":
        """Returns the weight on ``device``."""
        return replace(
            self,
            codes=self.codes.to(device),
            scales=self.scales.to(device),
            zeros=None if self.zeros is None else self.zeros.to(device),
            perm=None if self.perm is None else self.perm.to(device),
        )

    @property
    def groups(self) -> tuple[Tensor, Tensor]:
        """Scales and zero points, [N, groups] each."""
        groups = self.shape[1] // (self.group or self.shape[1])
        return self.scales[:groups].T, _zeros(self)[:groups].T

    @property
    def nbytes(self) -> int:
        planes = (self.codes, self.scales, self.zeros, self.perm)
        return sum(plane.nbytes for plane in planes if plane is not None)

    @property
    def planes(self) -> Planes:
        """The planes that the kernels take; columns are in permuted order."""
        return Planes(
            label=f"int4g{self.group}" + ("" if self.zeros is None else "z"),
            bits=4,
            group=self.group,
            offset=SYMMETRIC_ZERO,
            codes=self.codes,
            scales=self.scales,
            zeros=self.zeros,
            shape=self.shape,
        )


def dequantize(weight: W4Weight, dtype: torch.dtype) -> Tensor:
    """Returns [N, K] in the order of x's columns: scale · (code - zero) in float32, rounded once to ``dtype``."""
    rows, columns = weight.shape
    scales, zeros = (each.float().unsqueeze(-1) for each in weight.groups)
    codes = unpack_codes(weight.codes, columns).view(*scales.shape[:2], -1).float()
    values = ((codes - zeros) * scales).to(dtype).view(rows, columns)
    if weight.perm is None:
        return values
    ordered = torch.empty_like(values)
    ordered[:, weight.perm.long()] = values
    return ordered


def _zeros(weight: W4Weight) -> Tensor:
    if weight.zeros is not None:
        return weight.zeros
    return torch.full(weight.scales.shape, SYMMETRIC_ZERO, dtype=torch.uint8, device=weight.scales.device)


def _order(g_idx: Tensor, columns: int, group: int) -> Tensor | None:
    """Returns the columns sorted by group, int64 [K]; None if they already are."""
    if g_idx.shape != (columns,):
        raise ValueError(f"4-bit weights: g_idx is {tuple(g_idx.shape)}, expected ({columns},)")
    in_order = torch.arange(columns, device=g_idx.device) // group
    if torch.equal(g_idx.long(), in_order):
        return None
    perm = torch.argsort(g_idx.long(), stable=True)
    if not torch.equal(g_idx.long()[perm], in_order):
        raise ValueError(f"4-bit weights: g_idx does not put {group} columns in each of {columns // group} groups")
    return perm


def _same_order(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


def empty_weight(
    rows: int, columns: int, *, group: int, dtype: torch.dtype, device: torch.device | str, zeros: bool = False
) -> W4Weight:
    """Returns a weight of arbitrary contents, for shapes without a checkpoint."""
    groups = padded_groups(columns, group)
    return W4Weight(
        codes=torch.empty(blocks_of(columns), rows, BLOCK // 4, dtype=torch.int16, device=device),
        scales=torch.empty(groups, rows, dtype=dtype, device=device),
        zeros=torch.empty(groups, rows, dtype=torch.uint8, device=device) if zeros else None,
        perm=None,
        group=group,
        shape=(rows, columns),
    )
