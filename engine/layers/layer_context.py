"""How tensors are made and multiplied: one value passed to every layer."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from stentor.kernels.native.memory import empty_huge
from stentor.protocols.ipc.config import MoEBackend

from ..model_config.tensor_parallel.rank_part import RankPart
from ..quantization.choose import Backend
from ..quantization.formats import Format, OnlineFormat, QuantizedCheckpoint
from .adapters import AdaptedLinear, AdapterPlaces
from .parts import BeforePart
from .rank_group import RankGroup


class Memory(Protocol):
    """Where tensors on the CPU get their memory, in the order in which a model makes them."""

    @property
    def filled(self) -> bool:
        """Whether it holds already what they are to hold, and may not be written."""

    def take(self, nbytes: int) -> torch.Tensor:
        """uint8 [nbytes], at a multiple of 64 bytes. Raises MemoryError."""


@dataclass(frozen=True)
class LayerContext:
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
    float32_stream: bool = False
    """What goes from layer to layer is float32, whatever ``dtype`` is."""
    tells_experts: bool = False
    """Mixtures of experts tell :attr:`.forward_batch.ForwardBatch.routed` of each token's, in a CPU's program too."""
    adapters: AdapterPlaces | None = None
    """Where adapters may add to products that a checkpoint stores; None where none are loaded."""
    ranks: RankGroup | None = None
    """The workers that split the model; None where one has it all."""
    part: RankPart | None = None
    """What this one has of it then."""
    moe_backend: MoEBackend = "auto"
    """Who the operator wants to multiply by plain experts."""
    before_part: BeforePart | None = None
    """Called before every product and every attention to whole texts that is no step of a program, or before each part
    of it."""
    memory: Memory | None = None
    """Where the tensors lie, unless with :attr:`shapes_only`; None makes them where torch does."""

    def format_of(self, part: str) -> Format | None:
        """How the checkpoint stores a part's weight; None where it is plain."""
        return self.quantized.format_of(part) if self.quantized else None

    def adapted(self, parts: Mapping[str, int], inputs: int, *, plain: bool = False) -> AdaptedLinear | None:
        """What adapters add to a product by these projections, side by side; None where none are loaded. ``plain``:
        A and B are used as they are, and kept in float32."""
        if self.adapters is None:
            return None
        if plain:
            return self.adapters.add(parts, inputs, invariant=self.invariant)
        return self.adapters.add(
            parts, inputs, dtype=self.dtype, packed=self.packed, invariant=self.invariant, device=self.place
        )

    def exact(self, part: str) -> "LayerContext":
        """Of a product in float32, by a weight that is never quantised while it is loaded: that of ``part``."""
        quantized = None if isinstance(self.format_of(part), OnlineFormat) else self.quantized
        return replace(self, dtype=torch.float32, quantized=quantized)

    @property
    def filled(self) -> bool:
        """Whether the tensors hold their values as soon as they are made."""
        return self.memory is not None and self.memory.filled

    @property
    def stream(self) -> torch.dtype:
        """Of what goes from layer to layer, where it is no program's."""
        return torch.float32 if self.float32_stream else self.dtype

    @property
    def place(self) -> torch.device:
        """Where tensors of torch lie: nowhere with :attr:`shapes_only`."""
        return torch.device("meta") if self.shapes_only else self.device

    def take(self, nbytes: int) -> torch.Tensor:
        """Memory for packed weights, uint8 [nbytes]."""
        return empty_huge(nbytes) if self.memory is None else self.memory.take(nbytes)

    def ones(self, count: int) -> torch.Tensor:
        """float32 [count], which a checkpoint may give other values."""
        made = self.empty(count, dtype=torch.float32)
        return made if self.filled else made.fill_(1)

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        if self.memory is not None and not self.shapes_only:
            dtype = dtype or self.dtype
            return self.memory.take(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
        return torch.empty(shape, dtype=dtype or self.dtype, device=self.place)
