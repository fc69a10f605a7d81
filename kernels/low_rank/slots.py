"""Adapters of a product on a device, in slots at fixed addresses: a captured graph adds whatever is there."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from ..guards import FLOATS, describe, triton_unsupported_reason
from ..linear import linear
from ..variants import Choice, Variant, select_variant
from . import LowRank, LowRankSum
from .rows import RowGroups

_RANKS: Final = 16
"""Ranks are padded with zeros to a multiple of this, because fewer fill no tile of a tensor core."""
_ALIGNMENT: Final = 256


class SlotTable:
    """A, B and scale of each part of a product, for a number of slots; a slot that adds nothing has scale 0."""

    def __init__(
        self, inputs: int, parts: Sequence[int], slots: int, rank: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Allocates the table. ``parts``: outputs of each; ``rank``: the largest of any adapter."""
        self.inputs, self.parts, self.slots = inputs, tuple(parts), slots
        self.rank = rank
        self.ranks = -(-rank // _RANKS) * _RANKS
        """Ranks of each part, with padding."""
        self._dtype = dtype
        down, up = len(parts) * self.ranks * inputs, sum(parts) * self.ranks
        self._ends = [end * dtype.itemsize for end in (down, down + up)]
        self._ends[1] = -(-self._ends[1] // 4) * 4
        self.nbytes = -(-(self._ends[1] + 4 * len(parts)) // _ALIGNMENT) * _ALIGNMENT
        """Bytes per slot."""
        self.memory = torch.zeros((slots, self.nbytes), dtype=torch.uint8, device=device)
        self.down, self.up, self.scales = self._views(self.memory)
        columns = [sum(parts[:number]) for number in range(len(parts) + 1)]
        self.columns = torch.tensor(columns, dtype=torch.int32, device=device)
        """int32 [parts + 1]: where each part begins, and where the last ends."""
        self._begins = columns

    @property
    def outputs(self) -> int:
        return sum(self.parts)

    def _views(self, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns views of uint8 [slots, nbytes]: A [slots, parts * ranks, inputs], B [slots, outputs, ranks] and
        scales [slots, parts]."""
        first, second = self._ends
        scales = memory.narrow(1, second, 4 * len(self.parts)).view(torch.float32)
        down = memory.narrow(1, 0, first).view(self._dtype)
        up = memory.narrow(1, first, self.outputs * self.ranks * self._dtype.itemsize).view(self._dtype)
        return down.unflatten(1, (-1, self.inputs)), up.unflatten(1, (-1, self.ranks)), scales

    def image(self, parts: Sequence[LowRank]) -> "PlacedSum":
        """Returns a slot's contents on the host, pinned if the table is on a GPU.

        Raises ValueError for parts that are not parts of the product, or two for one part.
        """
        memory = torch.zeros((1, self.nbytes), dtype=torch.uint8, pin_memory=self.memory.is_cuda)
        down, up, scales = (each[0] for each in self._views(memory))
        held: list[LowRank] = []
        for part in sorted(parts, key=lambda part: part.column):
            rank, outputs, number = len(part.down), len(part.up), self._begins.index(part.column)
            if outputs != self.parts[number] or rank > self.rank or (held and held[-1].column == part.column):
                raise ValueError(f"{outputs} outputs of rank {rank} are no part of the product, or two for one")
            own = LowRank(
                down[number * self.ranks :][:rank], up[part.column :][:outputs, :rank], part.scale, part.column
            )
            own.down.copy_(part.down)
            own.up.copy_(part.up)
            scales[number] = part.scale
            held.append(own)
        return PlacedSum(held, memory[0])

    def put(self, slot: int, what: "PlacedSum | None") -> None:
        """Queues a copy to the slot, which work queued later sees."""
        if what is None:
            self.scales[slot].zero_()
        else:
            self.memory[slot].copy_(what.memory, non_blocking=True)


class PlacedSum(LowRankSum):
    """An adapter's parts on the host, in the layout of a slot of a :class:`SlotTable`."""

    def __init__(self, parts: Sequence[LowRank], memory: Tensor) -> None:
        """Takes ``parts`` that are views of ``memory``."""
        super().__init__(parts)
        self.memory = memory


def choose_in_slots(y: Tensor, variant: Choice = "auto") -> Variant:
    """Returns the variant that :func:`add_in_slots_` runs. Raises ValueError if a named one cannot run."""
    return select_variant(variant, triton=triton_unsupported_reason(y, variant))


def add_in_slots_(
    y: Tensor, x: Tensor, rows: RowGroups, table: SlotTable, *, invariant: bool = False, variant: Choice = "auto"
) -> Tensor:
    """Adds to each row of ``y`` the adapter in its slot applied to the same row of ``x``: y[r] += s · (x[r] Aᵀ) Bᵀ,
    part by part.

    Inputs are rounded to the dtype of A; the product with A and all sums are float32.

    Args:
        y: [T, outputs], any float dtype; changed. Rows without an adapter keep their bits.
        x: [T, inputs], any float dtype.
        rows: all T.
        table: the adapters of the product.
        invariant: a row has the same bits whatever shares its batch.
        variant: forces an implementation.

    Returns:
        ``y``.

    Raises:
        ValueError: shapes or strides that do not fit.
    """
    shapes = (len(rows.slots), table.inputs), (len(rows.slots), table.outputs)
    if (x.shape, y.shape) != shapes or x.dtype not in FLOATS or y.dtype not in FLOATS:
        raise ValueError(f"add_in_slots_: x {describe(x)} and y {describe(y)} must be {shapes[0]} and {shapes[1]}")
    if x.stride(1) != 1 or y.stride(1) != 1:
        raise ValueError(f"add_in_slots_: rows must be contiguous, strides are {x.stride()} and {y.stride()}")
    if choose_in_slots(y, variant) == "reference":
        return _reference_(y, x, rows, table, invariant=invariant)
    from .triton import add_  # late: heavy

    add_(y, x, rows, table, invariant=invariant)
    return y


def _reference_(y: Tensor, x: Tensor, rows: RowGroups, table: SlotTable, *, invariant: bool) -> Tensor:
    """The plain torch reference."""
    given = x.to(table.down.dtype).float()
    for slot in range(table.slots):
        own = (rows.slots == slot).unsqueeze(1)
        downs, ups = table.down[slot].float().split(table.ranks), table.up[slot].float().split(table.parts)
        for part, down, up, scale in zip(y.split(table.parts, dim=1), downs, ups, table.scales[slot], strict=True):
            added = linear(linear(given, down, invariant=invariant), up, invariant=invariant) * scale
            part.copy_(torch.where(own & (scale != 0.0), part + added, part))
    return y
