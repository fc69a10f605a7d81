"""LoRA adapters (arXiv:2106.09685): low-rank additions to products, stored with a model for its tasks or loaded by an
operator. The rows of a batch may have different adapters."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
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

from ...model_config.spec.model import Backbone, ModelSpec
from ...model_config.tensor_parallel.cuts import Cut
from ...model_config.tensor_parallel.rank_part import RankPart

NOBODY: Final = AdapterRows.none()
"""Stands for a batch's adapters while a pass is recorded in which rows may have some."""


class AdaptedLinear:
    """The additions of adapters to one product, each in a slot."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        dtype: torch.dtype = torch.float32,
        packed: bool = False,
        invariant: bool = False,
        table: SlotTable | None = None,
        elsewhere: bool = False,
    ) -> None:
        """
        Args:
            dtype: of stored adapters.
            packed: store them for a CPU's packed kernels.
            invariant: a row's result must not depend on other rows.
            table: device memory for the adapters in slots, others being on the host. None: all stay where they are put.
            elsewhere: another worker has the product, and its adapters.
        """
        self.slots = AdapterSlots(inputs, outputs)
        self.dtype = dtype
        self.table = table
        self.elsewhere = elsewhere
        self._packed = packed
        self._invariant = invariant

    def nbytes(self, rank: int, outputs: Sequence[int]) -> int:
        """Bytes of an adapter of this rank, whose parts have these numbers of outputs."""
        if self._packed:
            return packed_bytes([rank] * len(outputs), outputs, self.slots.inputs, self.dtype)
        if self.table is not None:
            return self.table.nbytes
        return self.dtype.itemsize * rank * sum(self.slots.inputs + each for each in outputs)

    def kept(self, parts: Sequence[LowRank], take: Callable[[int], torch.Tensor], device: torch.device) -> LowRankSum:
        """A copy of an adapter in the form for :meth:`put`. ``take`` allocates bytes on the CPU."""
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
        """The addition in a slot."""
        return self.slots.get(slot)

    def put(self, slot: int, what: LowRankSum | None) -> None:
        """Set the addition of a slot; None: nothing."""
        self.slots.put(slot, what)
        if self.table is not None:
            assert what is None or isinstance(what, PlacedSum)
            self.table.put(slot, what)

    def add_(self, product: torch.Tensor, x: torch.Tensor, rows: AdapterRows) -> torch.Tensor:
        """Add the rows' adapters to ``product`` [tokens, outputs], the product of ``x`` [tokens, inputs]."""
        if self.table is not None:
            assert rows.groups is not None
            return add_in_slots_(product, x, rows.groups, self.table, invariant=self._invariant)
        return add_low_rank_(product, x, rows, self.slots, invariant=self._invariant)


def rows_among(rows: AdapterRows | None, wanted: torch.Tensor, count: int) -> AdapterRows | None:
    """The adapters of the rows ``wanted`` int64 [n], out of ``count``, numbered by their place in it."""
    if rows is None:
        return None
    slots = torch.full((count,), -1, dtype=torch.int64, device=wanted.device)
    for slot, own in rows:
        slots[own] = slot
    tables = 0 if rows.groups is None else rows.groups.count
    return AdapterRows.of(slots[wanted].tolist(), [1] * len(wanted), wanted.device, tables)


class AdapterPlace(msgspec.Struct, frozen=True):
    """A place to which an adapter adds: a stored projection, or those of all experts stored as one tensor."""

    linears: tuple[AdaptedLinear, ...]
    """One, or one an expert."""
    column: int
    outputs: int
    transposed: bool = False
    """Whether all experts are stored as [experts, inputs, outputs]."""
    interleaved: bool = False
    """Whether gates and ups alternate."""
    tiles: tuple[int, int] = (0, 0)
    """(groups, heads) if the model alternates the heads of groups of inputs that the file has group by group."""
    cut: Cut | None = None
    """This worker's part of the projection, if several split the model; of tiles, in the order of files."""

    def own(self, down: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Convert A [rank, inputs] and B [outputs, rank] of a file to the model's order, and to this worker's part."""
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
        """Inputs of the whole projection."""
        cut = self.cut
        return cut.size if cut is not None and cut.inputs else self.linears[0].slots.inputs

    @property
    def stored_outputs(self) -> int:
        """Outputs of the whole projection."""
        return self.cut.size if self.cut is not None and not self.cut.inputs else self.outputs


Adapter = Mapping[AdaptedLinear, LowRankSum]
"""One adapter: its addition to each product."""


class TableSizes(msgspec.Struct, frozen=True):
    """Sizes of the tables on a device."""

    slots: int
    rank: int
    """The largest rank."""


class AdapterPlaces:
    """The products of a model that adapters may add to, by stored name."""

    def __init__(self, tables: TableSizes | None = None) -> None:
        """``tables``: sizes of device tables for adapters in slots; None keeps all on the host."""
        self.tables = tables
        self.by_name: dict[str, AdapterPlace] = {}
        self.parts_of: Callable[[str], tuple[str, ...]] = lambda module: (module,)
        """Stored names of a module of an adapter: several if the model splits a fused one."""
        self.spec: ModelSpec | None = None
        """The whole decoder's spec."""
        self.cuts: Mapping[str, Cut] = {}
        """This worker's part of stored tensors, if several split the model; set before the model is made."""
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
        """Register the product of ``inputs`` by these projections, concatenated; see :class:`AdaptedLinear`.

        ``device``: of its table, if there are tables.
        """
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
        """Slots of each table; 0 without tables."""
        return 0 if self.tables is None else self.tables.slots

    def nbytes(self, rank: int) -> int:
        """Bytes of the largest adapter of this rank."""
        return sum(linear.nbytes(rank, outputs) for linear, outputs in self._linears())

    def loose_bytes(self, rank: int) -> int:
        """Bytes of the part of such an adapter without a table, which lies where the model computes."""
        return sum(linear.nbytes(rank, outputs) for linear, outputs in self._linears() if linear.table is None)

    @property
    def table_bytes(self) -> int:
        """Bytes of all tables."""
        return sum(linear.table.memory.nbytes for linear, _ in self._linears() if linear.table is not None)

    def _linears(self) -> Iterator[tuple[AdaptedLinear, list[int]]]:
        """Each product of this worker with the outputs of its parts."""
        parts: dict[AdaptedLinear, dict[int, int]] = {}
        for place in self.by_name.values():
            for linear in place.linears:
                if not linear.elsewhere:
                    parts.setdefault(linear, {})[place.column] = place.outputs
        return ((linear, list(outputs.values())) for linear, outputs in parts.items())

    def has_loose(self, slots: Iterable[int]) -> bool:
        """Whether an adapter in one of these slots changes a product without a table."""
        return any(linear.table is None for slot in {*slots} for linear in self._in_slots.get(slot, ()))

    def put(self, slot: int, adapter: Adapter | None) -> None:
        """Put an adapter into a slot for rows; None empties the slot."""
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
