"""Low-rank additions to products (LoRA, arXiv:2106.09685): one set for each task that a model was trained for, or
those that an operator loads beside it; rows of a batch may have different ones."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from stentor.kernels.low_rank import (
    AdapterRows,
    AdapterSlots,
    LowRank,
    LowRankSum,
    PackedSum,
    add_low_rank_,
    packed_bytes,
)

NOBODY: Final = AdapterRows.none()
"""In place of those of a batch, while a pass is recorded in which some rows may have adapters."""


class AdaptedLinear:
    """What adapters add to a product, each in a slot of its own."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        dtype: torch.dtype = torch.float32,
        packed: bool = False,
        invariant: bool = False,
    ) -> None:
        """``dtype``: what adapters are kept in. ``packed``: as a CPU's own code takes them. ``invariant``: a row's
        result does not depend on the others."""
        self.slots = AdapterSlots(inputs, outputs)
        self.dtype = dtype
        self._packed = packed
        self._invariant = invariant

    def nbytes(self, rank: int, outputs: Sequence[int]) -> int:
        """What an adapter of this rank takes, with parts of so many outputs."""
        if self._packed:
            return packed_bytes([rank] * len(outputs), outputs, self.slots.inputs, self.dtype)
        return self.dtype.itemsize * rank * sum(self.slots.inputs + each for each in outputs)

    def kept(self, parts: Sequence[LowRank], take: Callable[[int], torch.Tensor]) -> LowRankSum:
        """A copy of an adapter, as it is to be put. ``take`` gives memory, so many bytes of the CPU."""
        if self._packed:
            return PackedSum(parts, self.dtype, take)
        return LowRankSum(
            [LowRank(part.down.to(self.dtype), part.up.to(self.dtype), part.scale, part.column) for part in parts]
        )

    def put(self, slot: int, what: LowRankSum | None) -> None:
        """From now on the slot adds this; None: nothing."""
        self.slots.put(slot, what)

    def add_(self, product: torch.Tensor, x: torch.Tensor, rows: AdapterRows) -> torch.Tensor:
        """Adds to ``product`` [tokens, outputs], which comes of ``x`` [tokens, inputs], what the rows' adapters say."""
        return add_low_rank_(product, x, rows, self.slots, invariant=self._invariant)


@dataclass(frozen=True)
class AdapterPlace:
    """Where an adapter adds to a stored projection."""

    linear: AdaptedLinear
    column: int
    outputs: int

    @property
    def inputs(self) -> int:
        return self.linear.slots.inputs


Adapter = Mapping[AdaptedLinear, LowRankSum]
"""One adapter: what it adds to each product."""


class AdapterPlaces:
    """The products of a model that adapters may add to, by the names under which these are stored."""

    def __init__(self) -> None:
        self.by_name: dict[str, AdapterPlace] = {}

    def add(
        self,
        parts: Mapping[str, int],
        inputs: int,
        *,
        dtype: torch.dtype = torch.float32,
        packed: bool = False,
        invariant: bool = False,
    ) -> AdaptedLinear:
        """A product of ``inputs`` by these projections, side by side; see :class:`AdaptedLinear`."""
        outputs = sum(parts.values())
        linear = AdaptedLinear(inputs, outputs, dtype=dtype, packed=packed, invariant=invariant)
        column = 0
        for name, columns in parts.items():
            self.by_name[name] = AdapterPlace(linear, column, columns)
            column += columns
        return linear

    def nbytes(self, rank: int) -> int:
        """Of the largest adapter of this rank."""
        return sum(
            self.by_name[names[0]].linear.nbytes(rank, [self.by_name[name].outputs for name in names])
            for names in self.in_order(list(self.by_name))
        )

    def in_order(self, names: Sequence[str]) -> list[list[str]]:
        """These projections, those of one product together."""
        found: dict[AdaptedLinear, list[str]] = {}
        for name in names:
            found.setdefault(self.by_name[name].linear, []).append(name)
        return list(found.values())

    def put(self, slot: int, adapter: Adapter | None) -> None:
        """From now on rows of this slot have this adapter, or none."""
        for linear in {place.linear for place in self.by_name.values()}:
            linear.put(slot, None if adapter is None else adapter.get(linear))


__all__ = ["NOBODY", "AdaptedLinear", "Adapter", "AdapterPlace", "AdapterPlaces", "AdapterRows"]
