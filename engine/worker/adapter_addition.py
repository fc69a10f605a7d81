"""What a module of an adapter's file adds to a model, before it is read."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from ..layers.adapters import AdaptedLinear, AdapterPlace
from ..loading.errors import CheckpointError

Matrices = tuple[torch.Tensor, torch.Tensor]
"""A [rank, inputs] and B [outputs, rank]."""


@dataclass(frozen=True)
class Addition:
    """One module; nothing of it is read yet, and its shapes have been checked."""

    module: str
    """As the file calls it."""
    places: Sequence[AdapterPlace]
    """Of the parts that the module has in the model."""
    scale: float
    read: Callable[[], list[list[Matrices]]]
    """Reads it, as float32: of each place what each of its products gets."""


def check_once(additions: Iterable[Addition]) -> None:
    """Raises :class:`..loading.errors.CheckpointError` where two of them change the same: what an adapter takes has a
    bound."""
    changed: dict[AdaptedLinear, list[tuple[int, int]]] = {}
    for addition in additions:
        for place in addition.places:
            own = place.column, place.column + place.outputs
            for linear in place.linears:
                others = changed.setdefault(linear, [])
                if any(own[0] < end and first < own[1] for first, end in others):
                    raise CheckpointError(f"what {addition.module[:200]} changes is changed twice")
                others.append(own)


def check_rank(module: str, rank: int, max_rank: int) -> None:
    """Raises :class:`..loading.errors.CheckpointError`."""
    if rank > max_rank:
        raise CheckpointError(f"{module} has rank {rank}, and the server takes {max_rank}: raise --max-lora-rank")


def not_adapted(module: str) -> CheckpointError:
    """To be raised."""
    return CheckpointError(f"it changes {module[:200]!r}, which this model has not, or which is not adapted here")
