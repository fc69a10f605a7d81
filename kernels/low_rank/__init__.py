"""What adapters add to a product: y[r] += scale · (x[r] Aᵀ) Bᵀ, with A and B of the row's own adapter."""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..guards import describe, native_unsupported_reason
from ..linear import linear
from ..native import NativeFunction, threads
from ..variants import Choice, Variant, select_variant

__all__ = ["AdapterRows", "LowRank", "LowRankSum", "add_low_rank_", "choose"]

_P, _I = ctypes.c_void_p, ctypes.c_int64
_NATIVE = NativeFunction("stentor_low_rank_f32", _P, _I, _P, _I, _I, _P, _I, _P, _P, _I)


class _PartStruct(ctypes.Structure):
    """``Part`` of native.cpp."""

    _fields_ = (("up", _P), ("rank", _I), ("outputs", _I), ("column", _I), ("scale", ctypes.c_double))


class _AdapterStruct(ctypes.Structure):
    """``Adapter`` of native.cpp."""

    _fields_ = (("down", _P), ("ranks", _I), ("parts", _P), ("count", _I))


@dataclass(frozen=True)
class AdapterRows:
    """Rows of a batch that have adapters, sorted by these."""

    adapters: tuple[int, ...]
    """Their slots, ascending."""
    rows: Tensor
    """int64 [n]"""
    starts: tuple[int, ...]
    """The rows of adapter a are [starts[a], starts[a + 1]) of ``rows``."""
    offsets: Tensor
    """The same, int64 on the CPU."""

    @classmethod
    def of(cls, adapters: Sequence[int], lengths: Sequence[int], device: torch.device) -> "AdapterRows | None":
        """``adapters``: of each sequence, below 0 for none; ``lengths``: how many rows each has, one sequence after
        another. None where no sequence has one."""
        present = sorted({adapter for adapter in adapters if adapter >= 0})
        if not present:
            return None
        of_row = torch.repeat_interleave(torch.tensor(adapters), torch.tensor(lengths))
        order = torch.argsort(of_row, stable=True)
        counts = [int((of_row == adapter).sum()) for adapter in present]
        starts = [0]
        for count in counts:
            starts.append(starts[-1] + count)
        rows = order[len(of_row) - starts[-1] :].contiguous()
        return cls(tuple(present), rows.to(device), tuple(starts), torch.tensor(starts))

    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        """Each adapter, and its rows."""
        for adapter, first, end in zip(self.adapters, self.starts, self.starts[1:], strict=False):
            yield adapter, self.rows[first:end]


@dataclass(frozen=True)
class LowRank:
    """What an adapter adds to some columns of a product."""

    down: Tensor
    """A, [rank, inputs]"""
    up: Tensor
    """B, [outputs, rank]"""
    scale: float
    column: int = 0
    """The first of them."""


class LowRankSum:
    """What an adapter adds to a product, part by part."""

    def __init__(self, parts: Sequence[LowRank]) -> None:
        """Takes the tensors as they are; :meth:`packed` is faster."""
        self.parts = tuple(parts)
        self.struct: ctypes.Structure | None = None

    @classmethod
    def packed(cls, parts: Sequence[LowRank]) -> "LowRankSum":
        """A copy of the parts in float32 as the native variant takes them."""
        ranks = [len(part.down) for part in parts]
        down = torch.cat([part.down.float() for part in parts])
        made = cls(
            [
                LowRank(rows, part.up.float().T.contiguous().T, part.scale, part.column)
                for part, rows in zip(parts, down.split(ranks), strict=True)
            ]
        )
        if down.device.type == "cpu":
            made._structs = (_PartStruct * len(parts))(
                *(
                    _PartStruct(part.up.data_ptr(), rank, len(part.up), part.column, part.scale)
                    for part, rank in zip(made.parts, ranks, strict=True)
                )
            )
            made.struct = _AdapterStruct(down.data_ptr(), len(down), ctypes.addressof(made._structs), len(parts))
        return made

    _structs: "ctypes.Array[_PartStruct]"


def choose(y: Tensor, x: Tensor, sums: Sequence[LowRankSum | None], variant: Choice = "auto") -> Variant:
    """The variant that :func:`add_low_rank_` runs. Raises ValueError where ``native`` is asked for and cannot run."""
    reason = native_unsupported_reason(_NATIVE if x.dtype == y.dtype == torch.float32 else None, x)
    if reason is None and (x.stride(1) != 1 or y.stride(1) != 1):
        reason = "it takes contiguous rows"
    if reason is None and any(each is not None and each.struct is None for each in sums):
        reason = "it takes adapters that are packed"
    return select_variant(variant, native=reason)


def add_low_rank_(
    y: Tensor,
    x: Tensor,
    rows: AdapterRows,
    sums: Sequence[LowRankSum | None],
    *,
    invariant: bool = False,
    variant: Choice = "auto",
) -> Tensor:
    """Adds to each row of ``y`` what its adapter makes of the same row of ``x``; sums are in float32.

    Args:
        y: [T, N], any float dtype; mutated.
        x: [T, K], any float dtype.
        rows: which rows have which adapter.
        sums: of each of these adapters, in their order; None: it adds nothing.
        invariant: the same row whatever shares its batch, bitwise; the native variant always is.
        variant: forces an implementation.

    Returns:
        ``y``.

    Raises:
        ValueError: shapes that do not agree.
    """
    if x.dim() != 2 or y.dim() != 2 or len(x) != len(y) or len(sums) != len(rows.adapters):
        raise ValueError(f"add_low_rank_: x {describe(x)}, y {describe(y)} and {len(sums)} adapters do not fit")
    for part in (part for each in sums if each is not None for part in each.parts):
        if part.down.shape[1] != x.shape[1] or part.column + len(part.up) > y.shape[1]:
            raise ValueError(
                f"add_low_rank_: A {describe(part.down)} and B {describe(part.up)} at column {part.column} do not fit "
                f"x {describe(x)} and y {describe(y)}"
            )
    if choose(y, x, sums, variant) == "native":
        addresses = (_P * len(sums))(
            *(None if each is None or each.struct is None else ctypes.addressof(each.struct) for each in sums)
        )
        _NATIVE(
            *(y.data_ptr(), y.stride(0), x.data_ptr(), x.stride(0), x.shape[1]),
            *(addresses, len(sums), rows.rows.data_ptr(), rows.offsets.data_ptr(), threads()),
        )
        return y
    for (_, own), each in zip(rows, sums, strict=True):
        for part in () if each is None else each.parts:
            low = linear(x[own].to(part.down.dtype), part.down, invariant=invariant)
            found = linear(low, part.up, invariant=invariant).to(y.dtype)
            y[:, part.column : part.column + len(part.up)].index_add_(0, own, found, alpha=part.scale)
    return y
