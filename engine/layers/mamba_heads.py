"""How files store the products of Mamba's heads (Zamba): a matrix of each, and channels and gates in turn."""

from functools import partial

import torch

from ..model_config.spec.recurrent import MambaSpec
from .linear.layer_context import LayerContext
from .linear.linear import check_arranged
from .linear.weights import WeightMap


def arrange_heads(weights: WeightMap, name: str, spec: MambaSpec, hidden: int, context: LayerContext) -> None:
    """Read them as products of all channels at once, with zeros between heads; ``name``: the mixer's."""
    for part in ("in_proj", "x_proj", "dt_proj"):
        check_arranged(f"{name}.{part}", context)
    for ending, shape in (("weight", (2 * spec.inner, hidden)), ("bias", (2 * spec.inner,))):
        weights.arrange(f"{name}.in_proj.{ending}", shape, partial(_channels_before_gates, spec.inner))
    size = spec.inner // spec.heads
    for part, each in (("x_proj", (spec.low, size)), ("dt_proj", (size, spec.rank))):
        weights.alias(f"{name}.{part}_weight", f"{name}.{part}.weight")
        weights.arrange(f"{name}.{part}.weight", (spec.heads, *each), lambda stored: torch.block_diag(*stored))
    weights.alias(f"{name}.dt_proj_bias", f"{name}.dt_proj.bias")
    for part, last in (("dt_proj.bias", ()), ("A_log", (spec.state_dim,)), ("D", ())):
        weights.arrange(f"{name}.{part}", (spec.heads, size, *last), lambda stored: stored.flatten(0, 1))


def _channels_before_gates(inner: int, stored: torch.Tensor) -> torch.Tensor:
    return stored.view(inner, 2, *stored.shape[1:]).transpose(0, 1).flatten(0, 1)
