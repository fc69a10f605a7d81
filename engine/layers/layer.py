"""One layer of a decoder or an encoder, as its :class:`..model_config.model_spec.LayerSpec` says."""

from stentor.kernels.quantize import Quantized

from ..model_config.attention_spec import AttentionSpec, LatentAttentionSpec
from ..model_config.mlp_spec import MoESpec, OpaqueSpec
from ..model_config.model_spec import Backbone
from .attention import Attention
from .cross_attention import CrossAttention
from .forward_batch import ForwardBatch
from .latent_attention import LatentAttention
from .layer_context import LayerContext
from .linear import Linear
from .mlp import MLP
from .moe import MoE
from .norm import Norm, added_, joined, make_norm
from .quantized import Stream
from .recurrent import Recurrent, make_recurrent
from .rotary import RotaryTables
from .weights import WeightMap


class Layer:
    """A mixer and a feed-forward network, each between the norms that it has, and a residual stream past both; between
    them perhaps attention to audio."""

    def __init__(
        self, weights: WeightMap, layer: int, model: Backbone, rotary: RotaryTables, context: LayerContext
    ) -> None:
        spec = model.layers[layer]
        norms, cross = spec.norms, spec.cross
        self._mixer = _mixer(weights, layer, model, rotary, context)
        self.cross = CrossAttention(weights, layer, model, cross, context) if cross else None
        self._mlp = _feed_forward(weights, layer, model, context)
        self._scale, self._parallel = model.residual_scale, spec.parallel

        def norm(name: str, before: Linear | None = None) -> Norm | None:
            return make_norm(weights, f"{model.prefix}.{layer}.{name}", norms, model, context, before) if name else None

        # in parallel two products may take it, which need not want it quantised alike
        self._mixer_in = norm(norms.mixer_in, None if self._parallel else self._mixer.into)
        self._mixer_out = norm(norms.mixer_out)
        self._mixer_sum = norm(norms.mixer_sum)
        self._cross_in = norm(norms.cross_in)
        self._mlp_in = norm(norms.mlp_in, self._mlp.input)
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


def _mixer(
    weights: WeightMap, layer: int, model: Backbone, rotary: RotaryTables, context: LayerContext
) -> Attention | LatentAttention | Recurrent:
    match model.layers[layer].mixer:
        case AttentionSpec():
            return Attention(weights, layer, model, rotary, context)
        case LatentAttentionSpec():
            return LatentAttention(weights, layer, model, rotary, context)
        case recurrent:
            return make_recurrent(weights, layer, model, recurrent, context)


def _feed_forward(weights: WeightMap, layer: int, model: Backbone, context: LayerContext) -> MLP | MoE:
    prefix, spec, hidden = f"{model.prefix}.{layer}", model.layers[layer].mlp, model.hidden_size
    if isinstance(spec, MoESpec):
        return MoE(weights, prefix, spec, hidden, context)
    assert not isinstance(spec, OpaqueSpec), "another library's modules compute it"
    return MLP(weights, prefix, spec, hidden, context, model.adapters)


def _summed(delta: Stream, residual: Stream, norm: Norm | None) -> tuple[Stream | None, Stream]:
    """What is yet to be added to the stream, and the stream: nothing, and a new one, where it is normed."""
    if norm is None:
        return delta, residual
    summed = norm.add(delta, residual)
    assert not isinstance(summed, Quantized), "only the input of a product is quantised"
    return None, summed
