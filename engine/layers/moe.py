"""A mixture of experts in place of a feed-forward network, as its :class:`..model_config.mlp_spec.MoESpec` says."""

from dataclasses import asdict
from typing import Any

import torch

from stentor import kernels
from stentor.kernels.forward import Traced

from ..model_config.mlp_spec import ExpertNames, ExpertTensor, MoESpec
from ..quantization.formats import Format, OnlineFormat
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
        self._experts = _Experts(weights, prefix, spec, hidden, context)
        self._shared = MLP(weights, prefix, spec.shared, hidden, context) if spec.shared else None
        self._shared_gate: Linear | None = None
        if spec.shared_gate:
            self._shared_gate = Linear(weights, {f"{prefix}.{spec.shared_gate}": 1}, hidden, context)

    def _add_router(self, weights: WeightMap, prefix: str, context: LayerContext) -> None:
        first, *others = (self._router_tensors(f"{prefix}.", names) for names in self._spec.names)
        for name, (target, shape) in first.items():
            part = name.removesuffix(".weight")
            if target is self._router:
                add_expanded(weights, part, target, _format_of(context, part))
            else:
                weights.add(name, target, shape=shape)
        for tensors in others:
            for (name, found), usual in zip(tensors.items(), first, strict=True):
                if name != usual:
                    weights.add_instead([usual], {name: found})

    def _router_tensors(self, prefix: str, names: ExpertNames) -> dict[str, Target]:
        """What is stored of the router, by name, in the order in which a spec lists it."""
        experts, found = self._spec.experts, dict[str, Target]()
        if self._router_bias is not None:
            found[f"{prefix}{names.router}.bias"] = self._router_bias, (experts,)
        found[f"{prefix}{names.router}.weight"] = self._router, tuple(self._router.shape)
        if self._correction is not None:
            found[prefix + names.correction] = self._correction, self._spec.correction_shape
        return found

    def __call__(self, x: Input, batch: ForwardBatch) -> Stream:
        """x [tokens, hidden] → [tokens, hidden]"""
        if isinstance(x, Traced):
            return x.call("experts", self._rows, self._hidden)
        assert isinstance(x, torch.Tensor)
        return self._forward(x, batch)

    def _rows(self, x: torch.Tensor, batch: Any) -> torch.Tensor:
        """As a program calls it, with float32."""
        return self._forward(x.to(self._dtype), batch)

    def _forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        logits = kernels.linear(x.float(), self._router, self._router_bias, invariant=self._invariant)
        routed = self._experts(x, kernels.route(logits, self._rule, self._correction)).to(self._stream)
        if self._shared is None:
            return routed
        shared = self._shared(x, batch)
        assert isinstance(shared, torch.Tensor)
        if self._shared_gate is not None:
            shared = self._shared_gate(x).sigmoid().to(shared.dtype) * shared
        return routed + shared


class _Experts:
    """The matrices of all experts, in the compute dtype whatever they are stored in."""

    def __init__(self, weights: WeightMap, prefix: str, spec: MoESpec, hidden: int, context: LayerContext) -> None:
        experts, inner = spec.experts, spec.inner
        self._activation, self._invariant = spec.activation, context.invariant
        self._gate_up_bias = self._down_bias = None
        if spec.bias:
            self._gate_up_bias = context.empty(experts, 2 * inner)
            self._down_bias = context.empty(experts, hidden)
        self._gate_up = context.empty(experts, 2 * inner, hidden)
        self._down = context.empty(experts, hidden, inner)
        usual = spec.names[0]
        for vector in spec.expert_biases(hidden):
            weights.add(f"{prefix}.{vector.name}", self._target(vector, usual, bias=True), shape=vector.shape)
        for matrix in spec.expert_tensors(hidden):
            self._add_matrix(weights, f"{prefix}.{matrix.name}", matrix, usual, context)
        for names in spec.names[1:]:
            for tensors, bias in ((spec.expert_biases, True), (spec.expert_tensors, False)):
                for out in (False, True):
                    instead = {
                        f"{prefix}.{each.name}": (self._target(each, names, bias=bias), each.shape)
                        for each in tensors(hidden, names)
                        if each.out == out
                    }
                    others = [f"{prefix}.{each.name}" for each in tensors(hidden) if each.out == out]
                    weights.add_instead(others, instead)

    def _target(self, tensor: ExpertTensor, names: ExpertNames, *, bias: bool = False) -> torch.Tensor:
        """What a stored tensor fills, its dimensions in the order of the stored ones."""
        whole = (self._down_bias if tensor.out else self._gate_up_bias) if bias else None
        if whole is None:
            whole = self._down if tensor.out else self._gate_up
        if tensor.expert is not None:
            return whole[tensor.expert, tensor.first : tensor.first + tensor.outputs]
        if names.interleaved and not tensor.out:
            whole = whole.unflatten(1, (2, -1)).transpose(1, 2)  # [experts, inner, gate or up, inputs]
        else:
            whole = whole[:, tensor.first : tensor.first + tensor.outputs]
        return whole.movedim(-1, 1) if names.transposed and not bias else whole

    def _add_matrix(
        self, weights: WeightMap, name: str, tensor: ExpertTensor, names: ExpertNames, context: LayerContext
    ) -> None:
        """However it is stored: no kernel multiplies by experts' codes."""
        target, part = self._target(tensor, names), name.removesuffix(".weight")
        format, plain = _format_of(context, part), str(context.dtype).removeprefix("torch.")
        if isinstance(format, OnlineFormat):
            weights.notes[f"weights of experts: left in {plain}, since no kernel multiplies by experts' codes"] += 1
        elif format is not None:
            why = "no kernel multiplies by experts' codes"
            weights.notes[f"weights of experts in {format.name}: expanded to {plain}, since {why}"] += 1
        if tensor.expert is not None:
            add_expanded(weights, part, target, format)
        else:
            weights.add(name, target, shape=tensor.shape)

    def __call__(self, x: torch.Tensor, routing: kernels.Routing) -> torch.Tensor:
        """x [tokens, hidden] → [tokens, hidden]"""
        return kernels.experts_mlp(
            x,
            routing,
            self._gate_up,
            self._down,
            self._activation,
            gate_up_bias=self._gate_up_bias,
            down_bias=self._down_bias,
            invariant=self._invariant,
        )


def _format_of(context: LayerContext, part: str) -> Format | None:
    return context.quantized.format_of(part) if context.quantized else None
