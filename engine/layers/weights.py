"""Where the tensors of a checkpoint go.

Layers allocate their final tensors and register, under the checkpoint's names, the views that each
stored tensor fills: three stored projections fill three slices of one fused matrix, with no second copy.
"""

from collections.abc import Iterable

import torch


class WeightError(Exception):
    """A checkpoint does not hold what the model needs."""


class WeightMap:
    """Stored name → destination view."""

    def __init__(self) -> None:
        self._targets: dict[str, torch.Tensor] = {}

    def add(self, name: str, target: torch.Tensor) -> None:
        self._targets[name] = target

    @property
    def total_bytes(self) -> int:
        """Bytes of all destinations."""
        return sum(target.numel() * target.itemsize for target in self._targets.values())

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]], *, ignore: tuple[str, ...] = ()) -> None:
        """Copies every stored tensor to its place, converting the dtype.

        Names that end with an entry of ``ignore`` may be there and are passed over. Raises
        :class:`WeightError` for a name that has no place, a shape that differs, or a place left empty.
        """
        missing = set(self._targets)
        for name, tensor in tensors:
            target = self._targets.get(name)
            if target is None:
                if name.endswith(ignore):
                    continue
                raise WeightError(f"the checkpoint holds {name}, which this architecture has no place for")
            if target.shape != tensor.shape:
                raise WeightError(
                    f"{name} has shape {tuple(tensor.shape)} in the checkpoint, expected {tuple(target.shape)}"
                )
            target.copy_(tensor)
            missing.discard(name)
        if missing:
            names = sorted(missing)
            raise WeightError(f"the checkpoint lacks {names[0]}" + (f" and {len(names) - 1} more" if names[1:] else ""))
