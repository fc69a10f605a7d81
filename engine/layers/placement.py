"""How tensors are made and multiplied: one value passed to every layer."""

from dataclasses import dataclass

import torch

from ..quantization.choose import Backend
from ..quantization.formats import QuantizedCheckpoint


@dataclass(frozen=True)
class Placement:
    device: torch.device
    dtype: torch.dtype
    invariant: bool
    """Bitwise the same row whatever the batch."""
    quantized: QuantizedCheckpoint | None = None
    """How the checkpoint stores weights; None where all are plain."""
    backend: Backend = "auto"
    """Forces how quantised weights are multiplied; for tests."""
    shapes_only: bool = False
    """Tensors take no memory and hold nothing; what is chosen for the device stays."""

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        device = torch.device("meta") if self.shapes_only else self.device
        return torch.empty(shape, dtype=dtype or self.dtype, device=device)
