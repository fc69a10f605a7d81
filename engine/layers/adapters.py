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

from ..model_config.model_spec import ModelSpec

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

    def get(self, slot: int) -> LowRankSum | None:
        """What the slot adds."""
        return self.slots.get(slot)

    def put(self, slot: int, what: LowRankSum | None) -> None:
        """From now on the slot adds this; None: nothing."""
        self.slots.put(slot, what)

    def add_(self, product: torch.Tensor, x: torch.Tensor, rows: AdapterRows) -> torch.Tensor:
        """Adds to ``product`` [tokens, outputs], which comes of ``x`` [tokens, inputs], what the rows' adapters say."""
        return add_low_rank_(product, x, rows, self.slots, invariant=self._invariant)


def rows_among(rows: AdapterRows | None, wanted: torch.Tensor, count: int) -> AdapterRows | None:
    """Those of ``wanted`` int64 [n], of ``count`` rows in all, by their places in it."""
    if rows is None:
        return None
    slots = torch.full((count,), -1, dtype=torch.int64, device=wanted.device)
    for slot, own in rows:
        slots[own] = slot
    return AdapterRows.of(slots[wanted].tolist(), [1] * len(wanted), wanted.device)


@dataclass(frozen=True)
class AdapterPlace:
    """Where an adapter adds to a stored projection, or to those of all experts that are stored as one."""

    linears: tuple[AdaptedLinear, ...]
    """One, or one an expert."""
    column: int
    outputs: int
    turned: bool = False
    """Of all experts, stored as [experts, inputs, outputs]."""
    interleaved: bool = False
    """Gates and ups, which take turns."""
    tiles: tuple[int, int] = (0, 0)
    """Where the model has the inputs of so many groups of so many heads in turn, which others have side by side."""

    def ordered(self, down: torch.Tensor) -> torch.Tensor:
        """A [rank, inputs] as the model has inputs."""
        groups, heads = self.tiles
        return down.view(len(down), groups, heads, -1).transpose(1, 2).flatten(1) if groups else down

    @property
    def inputs(self) -> int:
        return self.linears[0].slots.inputs


Adapter = Mapping[AdaptedLinear, LowRankSum]
"""One adapter: what it adds to each product."""


class AdapterPlaces:
    """The products of a model that adapters may add to, by the names under which these are stored."""

    def __init__(self) -> None:
        self.by_name: dict[str, AdapterPlace] = {}
        self.parts_of: Callable[[str], tuple[str, ...]] = lambda module: (module,)
        """The stored names of what adapters call a module: several where the model takes a fused one apart."""
        self.spec: ModelSpec | None = None
        """Of a decoder."""
        self._in_slots: dict[int, Adapter] = {}

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
            self.by_name[name] = AdapterPlace((linear,), column, columns)
            column += columns
        return linear

    def nbytes(self, rank: int) -> int:
        """Of the largest adapter of this rank."""
        parts: dict[AdaptedLinear, dict[int, int]] = {}
        for place in self.by_name.values():
            for linear in place.linears:
                parts.setdefault(linear, {})[place.column] = place.outputs
        return sum(linear.nbytes(rank, list(outputs.values())) for linear, outputs in parts.items())

    def put(self, slot: int, adapter: Adapter | None) -> None:
        """From now on rows of this slot have this adapter, or none."""
        for linear in self._in_slots.pop(slot, {}):
            linear.put(slot, None)
        if adapter is not None:
            self._in_slots[slot] = adapter
            for linear, what in adapter.items():
                linear.put(slot, what)


__all__ = ["NOBODY", "AdaptedLinear", "Adapter", "AdapterPlace", "AdapterPlaces", "AdapterRows", "rows_among"]
