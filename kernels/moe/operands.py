"""The arguments of every variant of :func:`stentor.kernels.experts_mlp`."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ..launching.launch import cdiv
from ..linear_coded import CodedMatrices
from ..linear_coded.weight import code_form_of, tensors_of
from .checks import ExpertActivation


@dataclass(frozen=True)
class Operands:
    """The checked arguments of :func:`stentor.kernels.experts_mlp`, contiguous except for the rows of ``x``."""

    x: Tensor
    chosen: Tensor
    """int32 [tokens, top_k]"""
    factors: Tensor
    """float32 [tokens, top_k]"""
    gate_up: Tensor | CodedMatrices
    down: Tensor | CodedMatrices
    activation: ExpertActivation
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    weight_input: bool = False
    invariant: bool = False

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors that are present, in a fixed order."""
        into, out = tensors_of(self.gate_up), tensors_of(self.down)
        each = (self.x, self.chosen, self.factors, *into, *out, self.gate_up_bias, self.down_bias)
        return [tensor for tensor in each if tensor is not None]

    @property
    def forms(self) -> tuple[object, ...]:
        """Everything else that launches depend on."""
        coded = code_form_of(self.gate_up), code_form_of(self.down)
        biased = self.gate_up_bias is None, self.down_bias is None
        return *coded, *biased, self.activation, self.weight_input, self.invariant

    @property
    def gated(self) -> bool:
        return self.gate_up.shape[1] != self.down.shape[2]

    @property
    def sizes(self) -> str:
        experts, hidden, inner = self.down.shape
        kind = f" {self.gate_up.kind}" if isinstance(self.gate_up, CodedMatrices) else ""
        return f"{experts}x{inner}x{hidden} k{self.chosen.shape[1]}{'' if self.gated else ' ungated'}{kind}"

    @property
    def dtype_name(self) -> str:
        return str(self.x.dtype).removeprefix("torch.")

    @property
    def rows_of_expert(self) -> int:
        """The rows of an expert if all experts have the same number."""
        return cdiv(self.chosen.numel(), len(self.down))


Run = Callable[[Operands], Tensor]
"""Runs :func:`stentor.kernels.experts_mlp` on the operands it was prepared for, or on others of the same layout."""
