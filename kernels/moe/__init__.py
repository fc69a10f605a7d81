"""Mixture-of-experts feed-forward: each token goes through the few experts that a router chooses for it."""

from functools import partial
from typing import Literal

import torch
from torch import Tensor

from ..activation.gated import KINDS, ActivationKind, gated_activation
from ..guards import FLOATS, describe
from ..linear import choose as choose_linear
from ..linear import linear
from ..variants import Choice, Variant
from . import reference
from .router import GroupScore, Router, Routing, Score

__all__ = [
    "ExpertActivation",
    "GroupScore",
    "Router",
    "Routing",
    "Score",
    "choose",
    "experts_mlp",
    "route",
]

ExpertActivation = ActivationKind | Literal["swiglu_oai"]
"""The gated kinds, and that of gpt-oss: gate · sigmoid(1.702 · gate) · (up + 1), where the gate is at most 7 and up
within ±7."""
ACTIVATIONS: tuple[ExpertActivation, ...] = (*KINDS, "swiglu_oai")


def route(logits: Tensor, router: Router, bias: Tensor | None = None) -> Routing:
    """Chooses each token's experts; of equal ones the lower.

    Args:
        logits: float32 [tokens, experts].
        router: how.
        bias: float32 [experts] or None: added to scores for the choice, not to the weights (DeepSeek-V3,
            arXiv:2412.19437).

    Raises:
        ValueError: shapes or dtypes that do not fit, or too few experts.
    """
    if logits.dim() != 2 or logits.dtype != torch.float32:
        raise ValueError(f"route: logits {describe(logits)} must be float32 [tokens, experts]")
    if bias is not None and (bias.shape != logits.shape[1:] or bias.dtype != torch.float32):
        raise ValueError(f"route: bias {describe(bias)} must be float32 [{logits.shape[1]}]")
    router.check(logits.shape[1])
    return reference.route(logits, router, bias)


def choose(x: Tensor, gate_up: Tensor, variant: Choice = "auto") -> Variant:
    """The variant that :func:`experts_mlp` runs: the native one has a product of ours for each expert.

    Raises:
        ValueError: one is asked for that cannot run.
    """
    return choose_linear(x, gate_up[0], invariant=True, variant=variant)


def experts_mlp(
    x: Tensor,
    routing: Routing,
    gate_up: Tensor,
    down: Tensor,
    activation: ExpertActivation,
    *,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    weight_input: bool = False,
    invariant: bool = False,
    variant: Choice = "auto",
) -> Tensor:
    """Σ over the chosen experts of weight · down(act(gate(x)) · up(x)), summed in float32.

    Products, and what is between them, are rounded to the dtype of ``x``.

    Args:
        x: [tokens, hidden], any float dtype.
        routing: of these tokens.
        gate_up: [experts, 2 · inner, hidden], the dtype of ``x``, gates first.
        down: [experts, hidden, inner], the dtype of ``x``.
        activation: see :data:`ExpertActivation`.
        gate_up_bias: [experts, 2 · inner] or None, the dtype of ``x``.
        down_bias: [experts, hidden] or None, the dtype of ``x``; it is weighted too.
        weight_input: the weight multiplies the expert's input in place of its output (Llama 4).
        invariant: the same token whatever the others, as for :func:`stentor.kernels.linear`.
        variant: forces an implementation.

    Returns:
        [tokens, hidden], a new contiguous tensor.

    Raises:
        ValueError: an unknown activation, shapes or dtypes that do not fit.
        IndexError: an expert that there is not.
    """
    check_experts("experts_mlp", x, routing, activation)
    experts, twice, hidden = gate_up.shape if gate_up.dim() == 3 else (0, 0, 0)
    if not experts or hidden != x.shape[1] or twice % 2 or down.shape != (experts, hidden, twice // 2):
        raise ValueError(
            f"experts_mlp: gate_up {describe(gate_up)} and down {describe(down)} do not fit x {describe(x)}; "
            "want [experts, 2 * inner, hidden] and [experts, hidden, inner]"
        )
    for name, bias, outputs in (("gate_up_bias", gate_up_bias, twice), ("down_bias", down_bias, hidden)):
        if bias is not None and bias.shape != (experts, outputs):
            raise ValueError(f"experts_mlp: {name} {describe(bias)} must be [{experts}, {outputs}]")
    for given in (gate_up, down, gate_up_bias, down_bias):
        if given is not None and given.dtype != x.dtype:
            raise ValueError(f"experts_mlp: {describe(given)} must have the dtype of x {describe(x)}")
    own: Choice = "auto" if choose(x, gate_up, variant) == "native" else "reference"
    product, gate = partial(linear, invariant=invariant, variant=own), partial(gated_activation, variant=own)
    return reference.experts_mlp(
        x, routing, gate_up, down, activation, gate_up_bias, down_bias, weight_input, product, gate
    )


def check_experts(operation: str, x: Tensor, routing: Routing, activation: ExpertActivation) -> None:
    """Raises ValueError unless ``routing`` fits ``x`` [tokens, hidden] and ``activation`` is one of ours."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"{operation}: activation must be one of {', '.join(ACTIVATIONS)}, not {activation!r}")
    if x.dim() != 2 or x.dtype not in FLOATS:
        raise ValueError(f"{operation}: x {describe(x)} must be [tokens, hidden] of a float dtype")
    experts, weights = routing
    if experts.dim() != 2 or len(experts) != len(x) or experts.dtype != torch.int32:
        raise ValueError(f"{operation}: experts {describe(experts)} must be int32 [{len(x)}, top_k]")
    if weights.shape != experts.shape or weights.dtype != torch.float32:
        raise ValueError(f"{operation}: weights {describe(weights)} must be float32 {list(experts.shape)}")
