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
    packed: bool = False
    """Weights are packed for this CPU's instructions as they are loaded; float32 or bfloat16."""
    shapes_only: bool = False
    """Tensors take no memory and hold nothing; what is chosen for the device stays."""

    @property
    def packed_device(self) -> torch.device:
        """Where packed weights lie: nowhere with :attr:`shapes_only`."""
        return torch.device("meta") if self.shapes_only else self.device

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        device = torch.device("meta") if self.shapes_only else self.device
        return torch.empty(shape, dtype=dtype or self.dtype, device=device)
