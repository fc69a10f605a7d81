"""Slices of stored tensors, for a worker that has a part of the model."""

from collections.abc import Iterable, Iterator, Mapping

import torch

from ..model_config.tensor_parallel import Cut
from .errors import CheckpointError


def sliced(tensors: Iterable[tuple[str, torch.Tensor]], cuts: Mapping[str, Cut]) -> Iterator[tuple[str, torch.Tensor]]:
    """What ``cuts`` leave of each tensor, by name; the rest of it is neither copied nor kept.

    Raises :class:`.errors.CheckpointError` for a tensor that is not of the size that is cut.
    """
    for name, tensor in tensors:
        cut = cuts.get(name)
        yield name, tensor if cut is None else _taken(name, tensor, cut)


def _taken(name: str, tensor: torch.Tensor, cut: Cut) -> torch.Tensor:
    if tensor.dim() <= cut.dim or tensor.shape[cut.dim] != cut.size:
        raise CheckpointError(
            f"{name} has shape {tuple(tensor.shape)} in the checkpoint, expected {cut.size} in dimension {cut.dim}"
        )
    if cut.zero:
        return torch.zeros_like(tensor)
    parts = [tensor.narrow(cut.dim, first, count) for first, count in cut.ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=cut.dim)
