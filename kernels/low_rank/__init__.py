"""Low-rank adapters of products: y[r] += scale · (x[r] Aᵀ) Bᵀ, with A and B of the row's own adapter."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..guards import describe
from ..linear import linear
from ..linear_packed import PLAIN, PackedStruct, PackedWeight, empty_packed, pack_plain_
from ..linear_packed.reference import dequantize
from ..native import NativeFunction, library, threads, unavailable_reason
from ..native.memory import empty_huge
from ..variants import Choice, Variant, select_variant
from .rows import AdapterRows, RowsStruct

__all__ = [
    "AdapterRows",
    "AdapterSlots",
    "LowRank",
    "LowRankSum",
    "PackedSum",
    "RowsStruct",
    "add_low_rank_",
    "choose",
    "packed_bytes",
]

_P, _I = ctypes.c_void_p, ctypes.c_int64
_NATIVE = NativeFunction("stentor_low_rank_f32", _P, _I, _P, _I, _P, _P, _I)


class _PartStruct(ctypes.Structure):
    """``Part`` of low_rank.h."""

    _fields_ = (("up", PackedStruct), ("column", _I), ("first", _I), ("scale", ctypes.c_double))


class _AdapterStruct(ctypes.Structure):
    """``Adapter`` of low_rank.h."""

    _fields_ = (("down", PackedStruct), ("parts", _P), ("count", _I))


class SlotsStruct(ctypes.Structure):
    """``Slots`` of low_rank.h."""

    _fields_ = (("adapters", _P), ("count", _I))


@dataclass(frozen=True)
class LowRank:
    """One adapter's A and B for some columns of a product."""

    down: Tensor
    """A, [rank, inputs]"""
    up: Tensor
    """B, [outputs, rank]"""
    scale: float
    column: int = 0
    """The first of these columns."""


@dataclass(frozen=True)
class _PackedPart:
    up: PackedWeight
    scale: float
    column: int
    first: int
    """Its first rank among those of all parts."""


class LowRankSum:
    """All that an adapter adds to a product, as a list of parts."""

    def __init__(self, parts: Sequence[LowRank]) -> None:
        """Keeps the tensors as they are."""
        self._parts = tuple(parts)
        self.inputs = parts[0].down.shape[1]
        self.columns = max(part.column + len(part.up) for part in parts)
        """The number of columns that the product must have at least."""

    @property
    def parts(self) -> tuple[LowRank, ...]:
        return self._parts


class PackedSum(LowRankSum):
    """A sum in the form that the native code takes, in float32 or bfloat16."""

    def __init__(
        self, parts: Sequence[LowRank], dtype: torch.dtype, take: Callable[[int], Tensor] = empty_huge
    ) -> None:
        """Copies the parts.

        ``take`` allocates a number of bytes as uint8, at a multiple of 64 bytes. The requests add up to
        :func:`packed_bytes`.
        """
        super().__init__(parts)
        self._parts = ()
        self._down = empty_packed(sum(len(part.down) for part in parts), self.inputs, PLAIN[dtype], take=take)
        self._packed: list[_PackedPart] = []
        first = 0
        for part in parts:
            up = empty_packed(len(part.up), len(part.down), PLAIN[dtype], take=take)
            pack_plain_(self._down, first, part.down, alone=True)
            pack_plain_(up, 0, part.up, alone=True)
            self._packed.append(_PackedPart(up, part.scale, part.column, first))
            first += len(part.down)
        self._structs = (_PartStruct * len(parts))(
            *(_PartStruct(each.up.struct, each.column, each.first, each.scale) for each in self._packed)
        )
        self.struct = _AdapterStruct(self._down.struct, ctypes.addressof(self._structs), len(parts))

    @property
    def parts(self) -> tuple[LowRank, ...]:
        """Copies of the parts in float32."""
        down = dequantize(self._down)
        return tuple(
            LowRank(down[each.first : each.first + each.up.shape[1]], dequantize(each.up), each.scale, each.column)
            for each in self._packed
        )


def packed_bytes(ranks: Sequence[int], outputs: Sequence[int], inputs: int, dtype: torch.dtype) -> int:
    """Returns the bytes of a :class:`PackedSum` with such parts."""
    shapes = [(sum(ranks), inputs), *zip(outputs, ranks, strict=True)]
    return sum(empty_packed(*shape, PLAIN[dtype], device="meta").nbytes for shape in shapes)


class AdapterSlots:
    """The adapters of a product, each in a slot of its own. The native code reads :attr:`struct`, whose address does
    not change."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.inputs, self.outputs = inputs, outputs
        self._sums: dict[int, LowRankSum] = {}
        self._addresses = (_P * 0)()
        self.struct = SlotsStruct()

    def get(self, slot: int) -> LowRankSum | None:
        return self._sums.get(slot)

    def put(self, slot: int, what: LowRankSum | None) -> None:
        """Sets what the slot adds; None: nothing. Raises ValueError if it does not fit the product."""
        if what is not None and (what.inputs != self.inputs or what.columns > self.outputs):
            raise ValueError(
                f"an adapter of {what.inputs} inputs and {what.columns} columns does not fit a product of "
                f"{self.inputs} inputs and {self.outputs} outputs"
            )
        if slot >= len(self._addresses):
            self._addresses = (_P * (slot + 1))(*self._addresses)
            self.struct.adapters, self.struct.count = ctypes.addressof(self._addresses), slot + 1
        self._addresses[slot] = ctypes.addressof(what.struct) if isinstance(what, PackedSum) else None
        if what is None:
            self._sums.pop(slot, None)
        else:
            self._sums[slot] = what

    def of(self, rows: AdapterRows) -> list[LowRankSum | None]:
        """Returns the adapters of these rows' slots, in their order."""
        return [self._sums.get(adapter) for adapter in rows.adapters]


def choose(y: Tensor, slots: AdapterSlots, rows: AdapterRows, variant: Choice = "auto") -> Variant:
    """Returns the variant that :func:`add_low_rank_` runs. Raises ValueError if ``native`` is asked for and cannot
    run."""
    reason = None
    if y.device.type != "cpu":  # first: whoever asks for the library waits until it is built
        reason = "it runs on the CPU"
    elif library() is None:
        reason = unavailable_reason()
    elif not all(each is None or isinstance(each, PackedSum) for each in slots.of(rows)):
        reason = "it takes adapters that are packed"
    return select_variant(variant, native=reason)


def add_low_rank_(
    y: Tensor,
    x: Tensor,
    rows: AdapterRows,
    slots: AdapterSlots,
    *,
    invariant: bool = False,
    variant: Choice = "auto",
) -> Tensor:
    """Adds to each row of ``y`` its adapter applied to the same row of ``x``; sums are in float32.

    Args:
        y: [T, outputs], any float dtype; changed.
        x: [T, inputs], any float dtype.
        rows: which rows have which adapter.
        slots: the adapters of the product.
        invariant: a row has the same bits whatever shares its batch; always so in the native variant.
        variant: forces an implementation.

    Returns:
        ``y``.

    Raises:
        ValueError: shapes that do not agree.
    """
    if x.dim() != 2 or y.dim() != 2 or len(x) != len(y) or (x.shape[1], y.shape[1]) != (slots.inputs, slots.outputs):
        raise ValueError(
            f"add_low_rank_: x {describe(x)} and y {describe(y)} do not fit a product of {slots.inputs} inputs and "
            f"{slots.outputs} outputs"
        )
    if choose(y, slots, rows, variant) == "native":
        _add_native_(y, x, rows, slots)
        return y
    for (_, own), each in zip(rows, slots.of(rows), strict=True):
        for part in () if each is None else each.parts:
            low = linear(x[own].to(part.down.dtype), part.down, invariant=invariant)
            found = linear(low, part.up, invariant=invariant).to(y.dtype)
            y[:, part.column : part.column + len(part.up)].index_add_(0, own, found, alpha=part.scale)
    return y


def _add_native_(y: Tensor, x: Tensor, rows: AdapterRows, slots: AdapterSlots) -> None:
    source, target = (each.float() if each.stride(1) == 1 else each.float().contiguous() for each in (x, y))
    _NATIVE(
        *(target.data_ptr(), target.stride(0), source.data_ptr(), source.stride(0)),
        *(ctypes.byref(slots.struct), ctypes.byref(rows.struct), threads()),
    )
    if target is not y:
        y.copy_(target)
