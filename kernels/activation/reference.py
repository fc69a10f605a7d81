"""act(gate) · up, in float32, rounded once"""

import torch
from torch import Tensor
from torch.nn import functional


def gated_activation(gate_up: Tensor, kind: str) -> Tensor:
    gate, up = gate_up.float().chunk(2, dim=-1)
    if kind == "silu":
        activated = functional.silu(gate)
    else:
        activated = functional.gelu(gate, approximate="tanh" if kind == "gelu_tanh" else "none")
    return torch.mul(activated, up).to(gate_up.dtype)
