"""The low-rank additions of an adapter's file to a model, before they are read."""

from collections.abc import Callable, Iterable, Sequence

import msgspec
import torch

from ...layers.linear.adapters import AdaptedLinear, AdapterPlace
from ...loading.errors import CheckpointError

Matrices = tuple[torch.Tensor, torch.Tensor]
"""A [rank, inputs] and B [outputs, rank]."""


class Addition(msgspec.Struct, frozen=True):
    """The addition of one module. Its shapes have been checked; its matrices are not read yet."""

    module: str
    """The module's name in the file."""
    places: Sequence[AdapterPlace]
    """The places of the module's parts in the model."""
    scale: float
    read: Callable[[], list[list[Matrices]]]
    """Read the matrices as float32: for each place, those of each of its products."""


def check_once(additions: Iterable[Addition]) -> None:
    """Check that no two additions change the same part of a product, since the memory of an adapter is bounded.

    Raises :class:`...loading.errors.CheckpointError`.
    """
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
    """Raise :class:`...loading.errors.CheckpointError` if the rank exceeds the limit."""
    if rank > max_rank:
        raise CheckpointError(f"{module} has rank {rank}, and the server takes {max_rank}: raise --max-lora-rank")


def not_adapted(module: str) -> CheckpointError:
    """The error for a module without a place in the model, to be raised."""
    return CheckpointError(f"it changes {module[:200]!r}, which this model has not, or which is not adapted here")
