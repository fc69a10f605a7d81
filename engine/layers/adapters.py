"""Low-rank additions to products (LoRA, arXiv:2106.09685): one set for each task that a model was trained for, or
those that an operator loads beside it; rows of a batch may have different ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from stentor import kernels


@dataclass(frozen=True)
class AdapterRows:
    """Rows of a batch that have the same adapter."""

    adapter: int
    """Its task, or the slot that it was put in."""
    rows: torch.Tensor | None
    """int64; None: all there are."""


SOME = (AdapterRows(-1, None),)
"""In place of those of a batch, while a pass is recorded in which some rows have adapters."""


def rows_by_adapter(adapters: Sequence[int], lengths: Sequence[int], device: torch.device) -> list[AdapterRows]:
    """``adapters``: of each sequence, -1 for none; ``lengths``: how many rows each has, one sequence after another."""
    present = sorted(set(adapters))
    if present == [-1] or not present:
        return []
    if len(present) == 1:
        return [AdapterRows(present[0], None)]
    of_row = torch.repeat_interleave(torch.tensor(adapters), torch.tensor(lengths))
    return [AdapterRows(adapter, (of_row == adapter).nonzero()[:, 0].to(device)) for adapter in present if adapter >= 0]


@dataclass(frozen=True)
class LowRank:
    """scale · x Aᵀ Bᵀ, added to some columns of a product."""

    down: torch.Tensor
    """A, [rank, inputs]"""
    up: torch.Tensor
    """B, [outputs, rank]"""
    scale: float
    column: int = 0
    """The first that it is added to."""

    @property
    def nbytes(self) -> int:
        return self.down.nbytes + self.up.nbytes


class AdaptedLinear:
    """What adapters add to a product, each in a slot of its own."""

    def __init__(self, *, invariant: bool = False) -> None:
        """``invariant``: a row's result does not depend on the others."""
        self._invariant = invariant
        self._slots: dict[int, Sequence[LowRank]] = {}

    def put(self, slot: int, parts: Sequence[LowRank]) -> None:
        """From now on the slot adds these; none: nothing."""
        if parts:
            self._slots[slot] = parts
        else:
            self._slots.pop(slot, None)

    def add_(self, product: torch.Tensor, x: torch.Tensor, groups: Sequence[AdapterRows]) -> torch.Tensor:
        """Adds to ``product`` [tokens, outputs], which comes of ``x`` [tokens, inputs], what each group's adapter
        says."""
        for group in groups:
            for part in self._slots.get(group.adapter, ()):
                rows = (x if group.rows is None else x[group.rows]).to(part.down.dtype)
                low = kernels.linear(rows, part.down, invariant=self._invariant)
                found = kernels.linear(low, part.up, invariant=self._invariant).to(product.dtype)
                columns = product[:, part.column : part.column + part.up.shape[0]]
                if group.rows is None:
                    columns.add_(found, alpha=part.scale)
                else:
                    columns.index_add_(0, group.rows, found, alpha=part.scale)
        return product


@dataclass(frozen=True)
class AdapterPlace:
    """Where an adapter adds to a stored projection."""

    linear: AdaptedLinear
    column: int
    inputs: int
    outputs: int

    def nbytes(self, rank: int) -> int:
        """That an adapter takes there in float32."""
        return 4 * rank * (self.inputs + self.outputs)


class AdapterPlaces:
    """The products of a model that adapters may add to, by the names under which these are stored."""

    def __init__(self) -> None:
        self.by_name: dict[str, AdapterPlace] = {}

    def add(self, parts: Mapping[str, int], inputs: int, *, invariant: bool) -> AdaptedLinear:
        """A product of ``inputs`` by these projections, side by side."""
        linear = AdaptedLinear(invariant=invariant)
        column = 0
        for name, outputs in parts.items():
            self.by_name[name] = AdapterPlace(linear, column, inputs, outputs)
            column += outputs
        return linear

    def nbytes(self, rank: int) -> int:
        """Of the largest adapter of this rank."""
        return sum(place.nbytes(rank) for place in self.by_name.values())

    def put(self, slot: int, adapter: Mapping[str, LowRank]) -> None:
        """From now on rows of this slot have this adapter: what it adds, by the names of projections."""
        parts: dict[AdaptedLinear, list[LowRank]] = {place.linear: [] for place in self.by_name.values()}
        for name, part in adapter.items():
            parts[self.by_name[name].linear].append(part)
        for linear, found in parts.items():
            linear.put(slot, found)
