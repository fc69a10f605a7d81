"""act(gate) · up, and act alone, in float32, rounded once."""

import torch
from torch import Tensor
from torch.nn import functional


def gated_activation(gate_up: Tensor, kind: str) -> Tensor:
    gate, up = gate_up.float().chunk(2, dim=-1)
    return torch.mul(activation(gate, kind), up).to(gate_up.dtype)


def activation(x: Tensor, kind: str) -> Tensor:
    if kind == "silu":
        return functional.silu(x.float()).to(x.dtype)
    if kind == "quick_gelu":
        return (x.float() * torch.sigmoid(1.702 * x.float())).to(x.dtype)
    if kind == "relu":
        return functional.relu(x)
    if kind == "relu2":
        return functional.relu(x.float()).square().to(x.dtype)
    return functional.gelu(x.float(), approximate="tanh" if kind == "gelu_tanh" else "none").to(x.dtype)
