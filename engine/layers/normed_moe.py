"""Experts beside a network for all tokens, where router, experts and network each norm the stream for themselves."""

from typing import Any

import torch

from stentor.kernels.forward import Traced

from ..model_config.mlp_spec import MoESpec
from .forward_batch import ForwardBatch
from .layer_context import LayerContext
from .moe import MoE
from .norm import RMSNorm
from .quantized import Input, Stream
from .weights import WeightMap


class NormedMoE(MoE):
    """norm(experts(norm(x))) + norm(network(norm(x))), of a stream x that is not normed (Gemma 4)."""

    def __init__(
        self, weights: WeightMap, prefix: str, spec: MoESpec, hidden: int, eps: float, context: LayerContext
    ) -> None:
        """``prefix`` is that of the layer."""
        super().__init__(weights, prefix, spec, hidden, context)
        names = spec.part_norms
        assert names is not None
        self._experts_in, self._experts_out, self._shared_in, self._shared_out = (
            RMSNorm(weights, f"{prefix}.{name}", hidden, eps, context)
            for name in (names.experts_in, names.experts_out, names.shared_in, names.shared_out)
        )
        self._router_in = RMSNorm(weights, None, hidden, eps, context)
        self._router_scale = context.empty(hidden, dtype=torch.float32)
        weights.add(f"{prefix}.{names.router_scale}", self._router_scale)
        self._expert_scale = context.empty(spec.experts, dtype=torch.float32)
        weights.add(f"{prefix}.{names.expert_scale}", self._expert_scale)

    def __call__(self, x: Input, batch: ForwardBatch) -> Stream:
        """x [tokens, hidden], the stream itself → [tokens, hidden]"""
        if isinstance(x, Traced):
            return x.call("experts with norms of their own", self._made, self._hidden)
        assert isinstance(x, torch.Tensor)
        return self._made(x, batch).to(self._stream)

    def _made(self, x: torch.Tensor, batch: Any) -> torch.Tensor:
        """float32 or the stream's dtype → float32"""
        assert self._shared is not None
        chosen = self._router_in.exact(x) * self._router_scale * self._hidden**-0.5
        routing = self._routing(self._router(chosen), batch)
        routing = routing._replace(weights=routing.weights * self._expert_scale[routing.experts.long()])
        routed = self._experts(self._experts_in.exact(x).to(self._dtype), routing)
        shared = self._shared(self._shared_in.exact(x).to(self._dtype), batch)
        assert isinstance(shared, torch.Tensor)
        return self._experts_out.exact(routed) + self._shared_out.exact(shared)
