"""A router that is a network of its own and hands what it computes on to the next layer's (ZAYA)."""

from typing import Any

import torch
from torch.nn.functional import gelu

from ...model_config.spec.mlp import MoESpec
from ...model_config.spec.projection import Projection
from ..elementwise import elementwise
from ..linear.layer_context import LayerContext
from ..linear.linear import Linear
from ..linear.weights import WeightMap
from ..norm import RMSNorm


class RouterNetwork:
    """Logits of experts: out(gelu(fc2(gelu(fc1(norm(y)))))) with y = down(x) + scale · the y of the layer before.

    All products are float32, because rounding can change the choice between near scores.
    """

    def __init__(self, weights: WeightMap, prefix: str, spec: MoESpec, hidden: int, context: LayerContext) -> None:
        """``prefix``: of the layer."""
        network = spec.network
        assert network is not None

        def linear(projection: Projection) -> Linear:
            exact = context.exact(f"{prefix}.{projection.parts[0][0]}")
            return Linear.of(weights, prefix, projection, exact)

        self._down, self._first, self._second, self._out = map(linear, network.projections(hidden, spec.choices))
        self._norm = RMSNorm(weights, f"{prefix}.{network.norm}", network.size, network.norm_eps, context)
        self._scale: torch.Tensor | None = None
        if network.carries:
            self._scale = context.empty(network.size, dtype=torch.float32)
            weights.add(f"{prefix}.{network.scale}", self._scale)

    def __call__(self, x: torch.Tensor, batch: Any) -> torch.Tensor:
        """x float32 [tokens, hidden] → logits, float32 [tokens, experts]; reads and writes what layers carry."""
        low = _product(self._down, x)
        if self._scale is not None:
            assert batch.carried.router is not None, "the layer before has the same router"
            low = low + batch.carried.router * self._scale
        batch.carried.router = low
        inner = elementwise(gelu, _product(self._first, self._norm.exact(low)))
        return _product(self._out, elementwise(gelu, _product(self._second, inner)))


def _product(linear: Linear, x: torch.Tensor) -> torch.Tensor:
    made = linear(x)
    assert isinstance(made, torch.Tensor)
    return made
