"""What the Triton kernels of experts are given."""

from dataclasses import dataclass

from torch import Tensor

from ..launch import cdiv
from ..linear_coded import CodedMatrices
from .checks import ExpertActivation


@dataclass(frozen=True)
class Operands:
    """Checked, and contiguous but for the rows of ``x``; see :func:`stentor.kernels.experts_mlp`."""

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
        """That an expert has if all have as many."""
        return cdiv(self.chosen.numel(), len(self.down))
