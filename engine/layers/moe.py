"""A mixture of experts in place of a feed-forward network, as its :class:`..model_config.mlp_spec.MoESpec` says."""

from dataclasses import asdict
from typing import Any

import torch

from stentor import kernels
from stentor.kernels.forward import Traced

from ..model_config.mlp_spec import ExpertNames, MoESpec
from .experts import PackedExperts, experts_of
from .forward_batch import ForwardBatch
from .layer_context import LayerContext
from .linear import Linear, add_expanded
from .mlp import MLP
from .quantized import Input, Stream
from .weights import Target, WeightMap


class MoE:
    """Σ over a token's experts of weight · down(act(gate(x)) · up(x)), and what its shared experts make of it.

    The router's product is float32 whatever the compute dtype: near scores choose other experts when they are rounded.
    """

    input: Linear | None = None
    """No product that takes its input quantised: router and experts take it plain."""

    def __init__(self, weights: WeightMap, prefix: str, spec: MoESpec, hidden: int, context: LayerContext) -> None:
        """``prefix`` is that of the layer."""
        self._spec, self._dtype, self._stream, self._invariant = spec, context.dtype, context.stream, context.invariant
        self._hidden = hidden
        self._rule = kernels.Router(**asdict(spec.router))
        self._router_bias = self._correction = None
        if spec.router_bias:
            self._router_bias = context.empty(spec.experts, dtype=torch.float32)
        self._router = context.empty(spec.experts, hidden, dtype=torch.float32)
        if spec.correction:
            self._correction = context.empty(spec.experts, dtype=torch.float32)
        self._add_router(weights, prefix, context)
        self._experts = experts_of(weights, prefix, spec, hidden, context)
        self._shared = MLP(weights, prefix, spec.shared, hidden, context) if spec.shared else None
        self._shared_gate: Linear | None = None
        if spec.shared_gate:
            self._shared_gate = Linear(weights, {f"{prefix}.{spec.shared_gate}": 1}, hidden, context)

    def _add_router(self, weights: WeightMap, prefix: str, context: LayerContext) -> None:
        first, *others = (self._router_targets(f"{prefix}.", names) for names in self._spec.names)
        for name, target in first.items():
            part = name.removesuffix(".weight")
            if target.tensor is self._router:
                add_expanded(weights, part, target.tensor, context.format_of(part))
            else:
                weights.add(name, target.tensor, shape=target.shape, read=target.read)
        for targets in others:
            for (name, target), usual in zip(targets.items(), first, strict=True):
                if name != usual:
                    weights.add_instead([usual], {name: target.fill})

    def _router_targets(self, prefix: str, names: ExpertNames) -> dict[str, Target]:
        """What is stored of the router, by name, in the order in which a spec lists it."""
        found: dict[str, Target] = {}
        if self._router_bias is not None:
            found[f"{prefix}{names.router}.bias"] = Target(self._router_bias, tuple(self._router_bias.shape))
        found[f"{prefix}{names.router}.weight"] = Target(self._router, tuple(self._router.shape))
        if self._correction is not None:
            found[prefix + names.correction] = Target(self._correction, self._spec.correction_shape, torch.flatten)
        return found

    def __call__(self, x: Input, batch: ForwardBatch) -> Stream:
        """x [tokens, hidden] → [tokens, hidden]"""
        if isinstance(x, Traced):
            return self._traced(x, batch)
        assert isinstance(x, torch.Tensor)
        return self._forward(x, batch)

    def _traced(self, x: Traced, batch: ForwardBatch) -> Traced:
        if self._shared is None or self._shared_gate is not None:
            return x.call("experts", self._rows, self._hidden)
        routed = x.call("experts", lambda rows, _: self._routed(self._taken(rows)), self._hidden)
        shared = self._shared(x, batch)
        assert isinstance(shared, Traced)
        return routed.add_(shared)

    def _taken(self, x: torch.Tensor) -> torch.Tensor:
        """A program's float32, as experts take it: those that are packed round it themselves."""
        return x if isinstance(self._experts, PackedExperts) else x.to(self._dtype)

    def _rows(self, x: torch.Tensor, batch: Any) -> torch.Tensor:
        return self._forward(self._taken(x), batch)

    def _routed(self, x: torch.Tensor) -> torch.Tensor:
        logits = kernels.linear(x.float(), self._router, self._router_bias, invariant=self._invariant)
        return self._experts(x, kernels.route(logits, self._rule, self._correction))

    def _forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        routed = self._routed(x).to(self._stream)
        if self._shared is None:
            return routed
        shared = self._shared(x, batch)
        assert isinstance(shared, torch.Tensor)
        if self._shared_gate is not None:
            shared = self._shared_gate(x).sigmoid().to(shared.dtype) * shared
        return routed + shared
