"""Argument checks of the operations on experts."""

from typing import Literal

import torch
from torch import Tensor

from ..activation.gated import KINDS, ActivationKind
from ..guards import FLOATS, describe
from .router import Routing

ExpertActivation = ActivationKind | Literal["swiglu_oai", "swiglu_10", "silu_7", "situ"]
"""The gated kinds, three that clamp a gate to at most 7 or 10, and an up to ±7 or ±10, and one with smooth bounds.
``swiglu_oai``: gate · sigmoid(1.702 · gate) · (up + 1) (gpt-oss). ``swiglu_10``: silu(gate) · up (DeepSeek-V4).
``silu_7``: likewise, with silu(gate) clamped in the gate's place (Step 3.5). ``situ``:
4 tanh(gate / 4) · sigmoid(gate) · 25 tanh(up / 25) (Kimi K3)."""
ACTIVATIONS: tuple[ExpertActivation, ...] = (*KINDS, "swiglu_oai", "swiglu_10", "silu_7", "situ")
"""The kinds in the order of their numbers in gated.h."""


def check_experts(operation: str, x: Tensor, routing: Routing, activation: ExpertActivation) -> None:
    """Raises ValueError unless ``routing`` fits ``x`` [tokens, hidden] and ``activation`` is a known one."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"{operation}: activation must be one of {', '.join(ACTIVATIONS)}, not {activation!r}")
    if x.dim() != 2 or x.dtype not in FLOATS:
        raise ValueError(f"{operation}: x {describe(x)} must be [tokens, hidden] of a float dtype")
    experts, weights = routing
    if experts.dim() != 2 or len(experts) != len(x) or experts.dtype != torch.int32:
        raise ValueError(f"{operation}: experts {describe(experts)} must be int32 [{len(x)}, top_k]")
    if weights.shape != experts.shape or weights.dtype != torch.float32:
        raise ValueError(f"{operation}: weights {describe(weights)} must be float32 {list(experts.shape)}")


def check_gate(operation: str, activation: ExpertActivation, *, gated: bool) -> None:
    """Raises ValueError for an activation that needs a gate if there is none."""
    if not gated and activation not in KINDS:
        raise ValueError(f"{operation}: {activation} takes a gate, and experts of one inner size have none")
