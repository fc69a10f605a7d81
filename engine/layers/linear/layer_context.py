"""How tensors are allocated and multiplied: one value passed to every layer."""

import math
from collections.abc import Mapping
from typing import Protocol

import msgspec
import torch
from msgspec.structs import replace

from stentor.kernels.native.memory import empty_huge
from stentor.protocols.ipc.config import MoEBackend

from ...model_config.tensor_parallel.rank_part import RankPart
from ...quantization.choose import Backend
from ...quantization.formats import Format, OnlineFormat, QuantizedCheckpoint
from .adapters import AdaptedLinear, AdapterPlaces
from .parts import BeforePart
from .rank_group import RankGroup
from .weights import WeightMap


class Memory(Protocol):
    """Allocates CPU tensors in the order in which a model makes them."""

    @property
    def filled(self) -> bool:
        """Whether it already holds the tensors' values and is read-only."""

    def take(self, nbytes: int) -> torch.Tensor:
        """uint8 [nbytes], aligned to 64 bytes. Raises MemoryError."""


class LayerContext(msgspec.Struct, frozen=True):
    device: torch.device
    dtype: torch.dtype
    invariant: bool
    """Whether a row's bits must not depend on the batch."""
    quantized: QuantizedCheckpoint | None = None
    """The checkpoint's weight formats; None if all are plain."""
    backend: Backend = "auto"
    """Forces a kernel for quantised weights; for tests."""
    packed: bool = False
    """Whether weights are packed for this CPU while loading; with float32 or bfloat16."""
    shapes_only: bool = False
    """Tensors have no memory; kernels are chosen as usual."""
    float32_stream: bool = False
    """Whether the residual stream is float32 in any ``dtype``."""
    tells_experts: bool = False
    """Whether mixtures of experts fill :attr:`..forward_batch.ForwardBatch.routed`, also in a CPU's program."""
    adapters: AdapterPlaces | None = None
    """The products that adapters may add to; None if adapters are disabled."""
    ranks: RankGroup | None = None
    """The workers that split the model; None for a single one."""
    part: RankPart | None = None
    """This worker's part of the model; None for a single one."""
    moe_backend: MoEBackend = "auto"
    """The operator's choice of backend for plain experts."""
    before_part: BeforePart | None = None
    """Called before every product and every whole-text attention outside of programs, or before each part of it."""
    memory: Memory | None = None
    """Allocator of tensors unless :attr:`shapes_only`; None: torch."""

    def format_of(self, part: str) -> Format | None:
        """The stored format of a part's weight; None if plain."""
        return self.quantized.format_of(part) if self.quantized else None

    def adapted(self, parts: Mapping[str, int], inputs: int, *, plain: bool = False) -> AdaptedLinear | None:
        """Register adapters of the product by these projections, concatenated; None if adapters are disabled.

        ``plain``: A and B are used as they are, in float32.
        """
        if self.adapters is None:
            return None
        if plain:
            return self.adapters.add(parts, inputs, invariant=self.invariant)
        return self.adapters.add(
            parts, inputs, dtype=self.dtype, packed=self.packed, invariant=self.invariant, device=self.place
        )

    def exact(self, part: str) -> "LayerContext":
        """The context of a float32 product by the weight of ``part``, which is not quantised while loading."""
        quantized = None if isinstance(self.format_of(part), OnlineFormat) else self.quantized
        return replace(self, dtype=torch.float32, quantized=quantized)

    @property
    def filled(self) -> bool:
        """Whether tensors have their values when they are allocated."""
        return self.memory is not None and self.memory.filled

    @property
    def stream(self) -> torch.dtype:
        """The dtype of the residual stream outside of programs."""
        return torch.float32 if self.float32_stream else self.dtype

    @property
    def place(self) -> torch.device:
        """The device of torch tensors; ``meta`` with :attr:`shapes_only`."""
        return torch.device("meta") if self.shapes_only else self.device

    def take(self, nbytes: int) -> torch.Tensor:
        """Memory for packed weights, uint8 [nbytes]."""
        return empty_huge(nbytes) if self.memory is None else self.memory.take(nbytes)

    def ones(self, count: int) -> torch.Tensor:
        """float32 [count] of ones, which a checkpoint may overwrite."""
        made = self.empty(count, dtype=torch.float32)
        return made if self.filled else made.fill_(1)

    def zeros(self, count: int) -> torch.Tensor:
        """As :meth:`ones`, of zeros."""
        made = self.empty(count, dtype=torch.float32)
        return made if self.filled else made.fill_(0)

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        if self.memory is not None and not self.shapes_only:
            dtype = dtype or self.dtype
            return self.memory.take(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
        return torch.empty(shape, dtype=dtype or self.dtype, device=self.place)


class LinearParts(msgspec.Struct, frozen=True):
    """The parts of a linear layer, fused along the outputs, from which a class that multiplies is made."""

    weights: WeightMap
    """Where the stored tensors of the parts are registered."""
    outputs: Mapping[str, int]
    """The outputs of each part, by its stored name, in order."""
    inputs: int
    context: LayerContext
    bias: torch.Tensor | None = None
    """[outputs of all parts], float32 if the weights are packed for a CPU."""

    @property
    def formats(self) -> dict[str, Format | None]:
        """The stored format of each part; None: plain."""
        return {part: self.context.format_of(part) for part in self.outputs}
