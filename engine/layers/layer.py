"""One layer of a decoder or an encoder, as its :class:`..model_config.model_spec.LayerSpec` says."""

import torch

from stentor import kernels
from stentor.kernels.forward import Traced
from stentor.kernels.quantize import Quantized

from ..model_config.model_spec import Backbone
from .attention import Attention
from .cross_attention import CrossAttention
from .forward_batch import ForwardBatch
from .layer_context import LayerContext
from .linear import Linear
from .norm import Norm, added_, joined, make_norm
from .quantized import Input, Stream
from .rotary import RotaryTables
from .weights import WeightMap
from .xielu import XIELU


class MLP:
    """down(act(gate(x)) * up(x)), or without a gate down(act(up(x)))."""

    def __init__(self, weights: WeightMap, layer: int, model: Backbone, context: LayerContext) -> None:
        prefix, spec, adapters = f"{model.prefix}.{layer}", model.layers[layer].mlp, model.adapters
        into, out = spec.projections(model.hidden_size)
        self._gated, self._activation = spec.gated, spec.activation
        fused = None if spec.gated or spec.activation == "relu" or spec.activation == "xielu" else spec.activation
        dtype = context.dtype if fused else context.stream  # what is activated is rounded as the next product would
        self.up = Linear.of(weights, prefix, into, context, adapters=adapters, activation=fused, dtype=dtype)
        self._down = Linear.of(weights, prefix, out, context, adapters=adapters, dtype=context.stream)
        self._xielu = XIELU(weights, f"{prefix}.{spec.act}", context) if spec.activation == "xielu" else None

    def __call__(self, x: Input, batch: ForwardBatch) -> Stream:
        """x [tokens, hidden], plain or quantised → [tokens, hidden]"""
        return self._down(self._activated(self.up(x, batch.task_rows)), batch.task_rows)

    def _activated(self, up: Stream) -> Input:
        """As the last product takes it; ``up`` may begin with gates."""
        if self._activation == "xielu":
            assert self._xielu is not None
            return self._xielu(up)
        if self._activation == "relu":
            assert isinstance(up, torch.Tensor)
            return up.relu_()
        if not self._gated:
            return up
        if isinstance(up, Traced):
            return up.gated(self._activation)
        if (scheme := self._down.input_scheme) is None:
            return kernels.gated_activation(up, self._activation)
        return kernels.gated_activation_quantized(up, self._activation, scheme, self._down.input_scale)


class Layer:
    """A mixer and a feed-forward network, each between the norms that it has, and a residual stream past both; between
    them perhaps attention to audio."""

    def __init__(
        self, weights: WeightMap, layer: int, model: Backbone, rotary: RotaryTables, context: LayerContext
    ) -> None:
        norms, cross = model.layers[layer].norms, model.layers[layer].cross
        self._mixer = Attention(weights, layer, model, rotary, context)
        self.cross = CrossAttention(weights, layer, model, cross, context) if cross else None
        self._mlp = MLP(weights, layer, model, context)
        self._scale, self._parallel = model.residual_scale, model.layers[layer].parallel

        def norm(name: str, before: Linear | None = None) -> Norm | None:
            return make_norm(weights, f"{model.prefix}.{layer}.{name}", norms, model, context, before) if name else None

        # in parallel two products may take it, which need not want it quantised alike
        self._mixer_in = norm(norms.mixer_in, None if self._parallel else self._mixer.qkv)
        self._mixer_out = norm(norms.mixer_out)
        self._mixer_sum = norm(norms.mixer_sum)
        self._cross_in = norm(norms.cross_in)
        self._mlp_in = norm(norms.mlp_in, self._mlp.up)
        self._mlp_out = norm(norms.mlp_out)
        self._mlp_sum = norm(norms.mlp_sum)

    def __call__(self, delta: Stream | None, residual: Stream, batch: ForwardBatch) -> tuple[Stream | None, Stream]:
        """``delta`` [tokens, hidden] of the layer before is added to the stream ``residual`` first, in place. Returns
        this layer's, not yet added, and the stream."""
        x = joined(delta, residual, self._mixer_in)
        delta = self._scaled(self._mixer(x, batch), self._mixer_out)
        if self._parallel:
            beside = self._scaled(self._mlp(x, batch), None)
            return beside, added_(residual, delta)
        delta, residual = _summed(delta, residual, self._mixer_sum)
        if self.cross is not None:
            delta = self.cross(joined(delta, residual, self._cross_in), batch)
        delta = self._scaled(self._mlp(joined(delta, residual, self._mlp_in), batch), self._mlp_out)
        return _summed(delta, residual, self._mlp_sum)

    def _scaled(self, delta: Stream, norm: Norm | None) -> Stream:
        if norm is not None:
            delta = norm.plain(delta)
        return delta if self._scale == 1.0 else delta * self._scale


def _summed(delta: Stream, residual: Stream, norm: Norm | None) -> tuple[Stream | None, Stream]:
    """What is yet to be added to the stream, and the stream: nothing, and a new one, where it is normed."""
    if norm is None:
        return delta, residual
    summed = norm.add(delta, residual)
    assert not isinstance(summed, Quantized), "only the input of a product is quantised"
    return None, summed
