"""Low-rank additions to products (LoRA, arXiv:2106.09685): one set for each task that a model was trained for, or
those that an operator loads beside it; rows of a batch may have different ones."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from stentor.kernels.low_rank.rows import RowGroups
from stentor.kernels.low_rank.slots import PlacedSum, SlotTable, add_in_slots_

from ..model_config.model_spec import Backbone, ModelSpec
from ..model_config.tensor_parallel.cuts import Cut
from ..model_config.tensor_parallel.rank_part import RankPart

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
        table: SlotTable | None = None,
    ) -> None:
        """``dtype``: what adapters are kept in. ``packed``: as a CPU's own code takes them. ``invariant``: a row's
        result does not depend on the others. ``table``: where those that rows have lie on a device, others on the
        host; without one all are where they are put."""
        self.slots = AdapterSlots(inputs, outputs)
        self.dtype = dtype
        self.table = table
        self._packed = packed
        self._invariant = invariant

    def nbytes(self, rank: int, outputs: Sequence[int]) -> int:
        """What an adapter of this rank takes, with parts of so many outputs."""
        if self._packed:
            return packed_bytes([rank] * len(outputs), outputs, self.slots.inputs, self.dtype)
        if self.table is not None:
            return self.table.nbytes
        return self.dtype.itemsize * rank * sum(self.slots.inputs + each for each in outputs)

    def kept(self, parts: Sequence[LowRank], take: Callable[[int], torch.Tensor], device: torch.device) -> LowRankSum:
        """A copy of an adapter, as it is to be put. ``take`` gives memory, so many bytes of the CPU."""
        if self._packed:
            return PackedSum(parts, self.dtype, take)
        if self.table is not None:
            return self.table.image(parts)
        return LowRankSum(
            [
                LowRank(part.down.to(device, self.dtype), part.up.to(device, self.dtype), part.scale, part.column)
                for part in parts
            ]
        )

    def get(self, slot: int) -> LowRankSum | None:
        """What the slot adds."""
        return self.slots.get(slot)

    def put(self, slot: int, what: LowRankSum | None) -> None:
        """From now on the slot adds this; None: nothing."""
        self.slots.put(slot, what)
        if self.table is not None:
            assert what is None or isinstance(what, PlacedSum)
            self.table.put(slot, what)

    def add_(self, product: torch.Tensor, x: torch.Tensor, rows: AdapterRows) -> torch.Tensor:
        """Adds to ``product`` [tokens, outputs], which comes of ``x`` [tokens, inputs], what the rows' adapters say."""
        if self.table is not None:
            assert rows.groups is not None
            return add_in_slots_(product, x, rows.groups, self.table, invariant=self._invariant)
        return add_low_rank_(product, x, rows, self.slots, invariant=self._invariant)


def rows_among(rows: AdapterRows | None, wanted: torch.Tensor, count: int) -> AdapterRows | None:
    """Those of ``wanted`` int64 [n], of ``count`` rows in all, by their places in it."""
    if rows is None:
        return None
    slots = torch.full((count,), -1, dtype=torch.int64, device=wanted.device)
    for slot, own in rows:
        slots[own] = slot
    tables = 0 if rows.groups is None else rows.groups.count
    return AdapterRows.of(slots[wanted].tolist(), [1] * len(wanted), wanted.device, tables)


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
    cut: Cut | None = None
    """What this worker has of the projection, where several split the model; of tiles, as others have them."""

    def own(self, down: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A [rank, inputs] and B [outputs, rank] as files have them → as the model has inputs, and what it has of
        inputs and outputs."""
        if self.cut is not None and not self.cut.inputs:
            up = torch.cat([up.narrow(0, first, count) for first, count in self.cut.ranges])
        elif self.cut is not None:
            down = torch.cat([down.narrow(1, first, count) for first, count in self.cut.ranges], dim=1)
        groups, heads = self.tiles
        if groups:
            down = down.view(len(down), groups, heads, -1).transpose(1, 2).flatten(1)
        return down, up

    @property
    def stored_inputs(self) -> int:
        """Of the whole projection."""
        cut = self.cut
        return cut.size if cut is not None and cut.inputs else self.linears[0].slots.inputs

    @property
    def stored_outputs(self) -> int:
        """The same."""
        return self.cut.size if self.cut is not None and not self.cut.inputs else self.outputs


Adapter = Mapping[AdaptedLinear, LowRankSum]
"""One adapter: what it adds to each product."""


@dataclass(frozen=True)
class TableSizes:
    """Of the tables on a device."""

    slots: int
    rank: int
    """The largest."""


class AdapterPlaces:
    """The products of a model that adapters may add to, by the names under which these are stored."""

    def __init__(self, tables: TableSizes | None = None) -> None:
        """``tables``: of products whose adapters lie in slots on a device; None keeps all on the host."""
        self.tables = tables
        self.by_name: dict[str, AdapterPlace] = {}
        self.parts_of: Callable[[str], tuple[str, ...]] = lambda module: (module,)
        """The stored names of what adapters call a module: several where the model takes a fused one apart."""
        self.spec: ModelSpec | None = None
        """Of a decoder, whole."""
        self.cuts: Mapping[str, Cut] = {}
        """What this worker has of stored tensors, where several split the model; known before the model is made."""
        self._in_slots: dict[int, Adapter] = {}

    def begin(self, spec: Backbone, part: RankPart | None) -> None:
        """Layers of this model come, or of a ``part`` of one."""
        whole = spec if part is None else part.whole
        self.spec = whole if isinstance(whole, ModelSpec) else None
        self.cuts = {} if part is None else part.cuts

    def add(
        self,
        parts: Mapping[str, int],
        inputs: int,
        *,
        dtype: torch.dtype = torch.float32,
        packed: bool = False,
        invariant: bool = False,
        device: torch.device | None = None,
    ) -> AdaptedLinear:
        """A product of ``inputs`` by these projections, side by side; see :class:`AdaptedLinear`. ``device``: where a
        table for it lies, if there are tables."""
        outputs, table = sum(parts.values()), None
        if self.tables is not None and device is not None:
            table = SlotTable(inputs, list(parts.values()), self.tables.slots, self.tables.rank, dtype, device)
        linear = AdaptedLinear(inputs, outputs, dtype=dtype, packed=packed, invariant=invariant, table=table)
        column = 0
        for name, columns in parts.items():
            self.by_name[name] = AdapterPlace((linear,), column, columns, cut=self.cuts.get(f"{name}.weight"))
            column += columns
        return linear

    @property
    def slots(self) -> int:
        """Of each table; 0 without any."""
        return 0 if self.tables is None else self.tables.slots

    def nbytes(self, rank: int) -> int:
        """Of the largest adapter of this rank."""
        return sum(linear.nbytes(rank, outputs) for linear, outputs in self._linears())

    def loose_bytes(self, rank: int) -> int:
        """Of the same, what has no table: it is where the model computes."""
        return sum(linear.nbytes(rank, outputs) for linear, outputs in self._linears() if linear.table is None)

    @property
    def table_bytes(self) -> int:
        """Of all tables."""
        return sum(linear.table.memory.nbytes for linear, _ in self._linears() if linear.table is not None)

    def _linears(self) -> Iterator[tuple[AdaptedLinear, list[int]]]:
        """Each, with the outputs of its parts."""
        parts: dict[AdaptedLinear, dict[int, int]] = {}
        for place in self.by_name.values():
            for linear in place.linears:
                parts.setdefault(linear, {})[place.column] = place.outputs
        return ((linear, list(outputs.values())) for linear, outputs in parts.items())

    def has_loose(self, slots: Iterable[int]) -> bool:
        """Whether an adapter in one of these slots changes a product that has no table."""
        return any(linear.table is None for slot in {*slots} for linear in self._in_slots.get(slot, ()))

    def put(self, slot: int, adapter: Adapter | None) -> None:
        """From now on rows of this slot have this adapter, or none."""
        for linear in self._in_slots.pop(slot, {}):
            if adapter is None or linear not in adapter:
                linear.put(slot, None)
        if adapter is not None:
            self._in_slots[slot] = adapter
            for linear, what in adapter.items():
                linear.put(slot, what)


__all__ = [
    "NOBODY",
    "AdaptedLinear",
    "Adapter",
    "AdapterPlace",
    "AdapterPlaces",
    "AdapterRows",
    "RowGroups",
    "TableSizes",
    "rows_among",
]
