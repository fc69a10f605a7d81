"""One layer of a decoder or encoder, described by a :class:`..model_config.spec.layer.LayerSpec`."""

from copy import copy

import torch

from stentor.kernels.forward import Traced
from stentor.kernels.quantize import Quantized

from ..model_config.spec.attention import AttentionSpec
from ..model_config.spec.compressed_attention import CompressedAttentionSpec
from ..model_config.spec.latent_attention import LatentAttentionSpec
from ..model_config.spec.layer import BesideSpec, LayerSpec, MixerSpec
from ..model_config.spec.mlp import FeedForwardSpec, MoESpec, OpaqueSpec
from ..model_config.spec.model import Backbone
from ..model_config.spec.streams import LaurelSpec
from .added_conv import AddedConv
from .attention.attention import Attention
from .attention.compressed_attention import CompressedAttention
from .attention.cross_attention import CrossAttention
from .attention.latent_attention import LatentAttention
from .attention.loop_attention import LoopAttention
from .attention.shared_attention import SharedAttention
from .experts.moe import MoE, NormedMoE
from .forward_batch import ForwardBatch
from .laurel import Laurel
from .linear.layer_context import LayerContext
from .linear.linear import Linear
from .linear.quantized import Delta, Input, Stream, Unnormed, multiplied
from .linear.weights import WeightMap
from .mlp import MLP
from .norm import Norm, added_, joined, make_norm
from .per_layer import PerLayer, PerLayerInputs, scaled_
from .recurrent import Recurrent, make_recurrent
from .rotary import RotaryTables
from .scaled_sum import GatedSum, ScaledSum
from .shared_block import SharedBlock, SharedWeights

Mixer = Attention | LoopAttention | SharedAttention | LatentAttention | CompressedAttention | Recurrent


class Layer:
    """A mixer and a feed-forward network, or one of them, with their norms and a residual stream; optionally
    cross-attention between them."""

    def __init__(
        self,
        weights: WeightMap,
        layer: int,
        model: Backbone,
        rotary: RotaryTables,
        context: LayerContext,
        inputs: PerLayerInputs | None = None,
        spec: LayerSpec | None = None,
        blocks: dict[int, SharedWeights] | None = None,
    ) -> None:
        """``spec``: a part of the model's ``layer``; None: all of it. ``blocks``: what layers share, by the first of
        them, to which this one adds."""
        spec = spec or model.layers[layer]
        norms, cross = spec.norms, spec.cross
        self._block: SharedBlock | None = None
        if (block := spec.block) is not None:
            assert blocks is not None, "only a decoder of plain layers has blocks"
            if block.source not in blocks:
                blocks[block.source] = SharedWeights(weights, model, block, rotary, context)
            self._block = SharedBlock(weights, layer, model, block, blocks[block.source], context)
        self._mixer: Mixer | None = None
        if spec.mixer is not None:
            self._mixer = make_mixer(weights, layer, model, spec.mixer, rotary, context)
        self._beside = None if spec.beside is None else _other(weights, layer, model, spec.beside, context)
        self.cross = CrossAttention(weights, layer, model, cross, context) if cross else None
        self._mlp = None if spec.mlp is None else make_feed_forward(weights, layer, model, spec.mlp, context)
        self._shortcut: MoE | None = None
        if spec.shortcut is not None:
            self._shortcut = MoE(weights, model.layer_prefix(layer), spec.shortcut, model.hidden_size, context)
        self._ends_shortcut = layer > 0 and model.layers[layer - 1].shortcut is not None
        self._parallel, self._sum_scale = spec.parallel, spec.sum_scale
        self._renews, self._stream_scales = norms.renews, spec.stream_scales
        self._mixer_scale, self._beside_scale, self._mlp_scale = (
            model.residual_scale * scale for scale in (spec.mixer_scale, spec.beside_scale, spec.mlp_scale)
        )

        def norm(name: str, before: Linear | None = None) -> Norm | None:
            return (
                make_norm(weights, f"{model.layer_prefix(layer)}.{name}", norms, model, context, before)
                if name
                else None
            )

        # parallel parts share the input and may need it quantised differently
        alone = self._mixer is not None and self._beside is None and not self._parallel and not self._renews
        alone = alone and self._block is None
        self._mixer_in = norm(norms.mixer_in, self._mixer.into if self._mixer is not None and alone else None)
        self._mixer_out = norm(norms.mixer_out)
        self._mixer_sum = norm(norms.mixer_sum)
        self._cross_in = norm(norms.cross_in)
        self._mlp_in = norm(
            norms.mlp_in, None if self._mlp is None or self._renews or self._shortcut else self._mlp.input
        )
        self._mlp_out = norm(norms.mlp_out)
        self._mlp_sum = norm(norms.mlp_sum)
        summed = [f"{model.layer_prefix(layer)}.{name}" for name in spec.sums or ()]
        self._sums: list[ScaledSum | GatedSum]
        if (temperature := spec.sum_temperature) != 0.0:
            self._sums = [GatedSum(weights, name, model.hidden_size, temperature, context) for name in summed]
        else:
            self._sums = [ScaledSum(weights, name, model.hidden_size, context) for name in summed]
        first = len(spec.states(model.hidden_size)) - len(spec.out_convs or ())
        self._convs = [
            AddedConv(weights, model.layer_prefix(layer), conv, layer, state, context)
            for state, conv in enumerate(spec.out_convs or (), first)
        ]
        apart = bool(self._sums or self._convs)
        self._late_mixer = None if apart else _late(self._mixer, self._mixer_scale, self._mixer_out)
        self._late_mlp = None if apart else _late(self._mlp, self._mlp_scale, self._mlp_out)
        self._own = PerLayer(weights, layer, model, inputs, context) if inputs else None
        weights.pass_over(*(f"{model.layer_prefix(layer)}.{name}" for name in spec.unused))
        self._scalar: torch.Tensor | None = None
        if spec.scalar:
            self._scalar = context.empty(1, dtype=torch.float32)
            weights.add(f"{model.layer_prefix(layer)}.{spec.scalar}", self._scalar)

    def again(
        self, weights: WeightMap, layer: int, model: Backbone, rotary: RotaryTables, context: LayerContext
    ) -> "Layer":
        """The layer numbered ``layer``, of a later loop, with the weights of this one, which must attend."""
        assert isinstance(self._mixer, Attention)
        found = copy(self)
        if model.layers[layer].attention.loop is not None:
            found._mixer = LoopAttention(self._mixer, weights, layer, model, rotary, context)
            found._late_mixer = None
            return found
        found._mixer = mixer = self._mixer.again(model.cache_index(layer))
        found._late_mixer = None if self._late_mixer is None else mixer
        return found

    def __call__(
        self, delta: Delta | None, residual: Stream, batch: ForwardBatch, given: Stream | None = None
    ) -> tuple[Delta | None, Stream]:
        """Run the layer; returns its output, not yet added, and the stream.

        ``delta`` [tokens, hidden], the former layer's output, is first added to the stream ``residual`` in place.
        ``given``: input of the mixer in place of the stream.
        """
        if self._mixer is not None:
            if self._block is not None:
                residual, delta = residual if delta is None else added_(residual, delta), None
                given = self._mixed_in(self._block(residual, batch))
            x = joined(delta, residual, self._mixer_in) if given is None else given
            if self._renews and given is None:
                residual = x = _settled(x)
            if self._late_mixer is not None:
                delta = self._late_mixer(x, batch, late=True)
            else:
                delta = _scaled(self._mixer(x, batch), self._mixer_scale, self._mixer_out)
            if self._convs:
                delta = self._convs[0](multiplied(delta), batch)
            if isinstance(x, Unnormed):
                residual = x.stream
            if self._stream_scales[0] != 1.0:
                residual = scaled_(residual, self._stream_scales[0])
            if self._beside is not None:
                delta, residual = _scaled(self._beside(x, batch), self._beside_scale), added_(residual, delta)
            if self._parallel:
                assert self._mlp is not None
                x = x if self._mlp_in is None else self._mlp_in(residual)
                return _scaled(self._mlp(x, batch), self._mlp_scale), added_(residual, delta)
            if self._sums:
                residual = self._sums[0](multiplied(delta), residual)
                delta = None
            else:
                delta, residual = _summed(delta, residual, self._mixer_sum)
            if self._sum_scale != 1.0:
                residual = residual if delta is None else added_(residual, delta)
                delta, residual = None, scaled_(residual, self._sum_scale)
        if self.cross is not None:
            delta = self.cross(joined(delta, residual, self._cross_in), batch)
        if self._mlp is not None:
            x = joined(delta, residual, self._mlp_in)
            if self._renews:
                residual = x = _settled(x)
            shortcut = None if self._shortcut is None else self._shortcut(x, batch)
            if self._late_mlp is not None:
                delta = self._late_mlp(x, batch, late=True)
            else:
                delta = _scaled(self._mlp(x, batch), self._mlp_scale, self._mlp_out)
            if self._convs:
                delta = self._convs[1](multiplied(delta), batch)
            if isinstance(x, Unnormed):
                residual = x.stream
            if self._stream_scales[1] != 1.0:
                residual = scaled_(residual, self._stream_scales[1])
            if self._sums:
                residual = self._sums[1](multiplied(delta), residual)
                delta = None
            else:
                delta, residual = _summed(delta, residual, self._mlp_sum)
            if self._ends_shortcut:
                residual = residual if delta is None else added_(residual, delta)
                delta = batch.carried.output
            batch.carried.output = shortcut
        if self._own is None and self._scalar is None:
            return delta, residual
        return None, self._completed(delta, residual, batch)

    def _mixed_in(self, x: Stream) -> Stream:
        assert self._mixer_in is not None
        return self._mixer_in.plain(x)

    def _completed(self, delta: Delta | None, residual: Stream, batch: ForwardBatch) -> Stream:
        """The stream with the layer's per-layer input added, and scaled."""
        if delta is not None:
            residual = added_(residual, delta)
        if self._own is not None:
            residual = added_(residual, self._own(residual, batch))
        return residual if self._scalar is None else scaled_(residual, self._scalar)


def make_mixer(
    weights: WeightMap, layer: int, model: Backbone, spec: MixerSpec, rotary: RotaryTables, context: LayerContext
) -> Mixer:
    """The mixer of a layer."""
    match spec:
        case AttentionSpec(shares=shared) if shared >= 0:
            return SharedAttention(weights, layer, model, rotary, context)
        case AttentionSpec():
            return Attention(weights, layer, model, rotary, context)
        case CompressedAttentionSpec():
            return CompressedAttention(weights, layer, model, rotary, context)
        case LatentAttentionSpec():
            return LatentAttention(weights, layer, model, rotary, context)
        case recurrent:
            return make_recurrent(weights, layer, model, recurrent, context)


def _other(
    weights: WeightMap, layer: int, model: Backbone, spec: BesideSpec, context: LayerContext
) -> Laurel | Recurrent:
    """The second mixer of a layer, whose input is that of the first."""
    if isinstance(spec, LaurelSpec):
        return Laurel(weights, layer, model, spec, context)
    return make_recurrent(weights, layer, model, spec, context)


def make_feed_forward(
    weights: WeightMap, layer: int, model: Backbone, spec: FeedForwardSpec, context: LayerContext
) -> MLP | MoE:
    """The network of a layer."""
    prefix, hidden = model.layer_prefix(layer), model.hidden_size
    if isinstance(spec, MoESpec) and spec.part_norms:
        return NormedMoE(weights, prefix, spec, hidden, model.norm_eps, context)
    if isinstance(spec, MoESpec):
        return MoE(weights, prefix, spec, hidden, context)
    assert not isinstance(spec, OpaqueSpec), "another library's modules compute it"
    return MLP(weights, prefix, spec, hidden, context, model.adapters, eps=model.norm_eps)


def _settled(x: Input) -> Stream:
    """The input of a part as a stream."""
    assert not isinstance(x, Quantized | Unnormed), "only a norm before one product quantises, or waits"
    return x.settled() if isinstance(x, Traced) else x


def _late(part: object, scale: float, norm: Norm | None) -> Attention | MLP | None:
    """The part, if its output is added to the stream as it is, by one kernel with its last product."""
    if scale == 1.0 and norm is None and isinstance(part, Attention | MLP) and part.out.adds:
        return part
    return None


def _scaled(delta: Stream, scale: float, norm: Norm | None = None) -> Stream:
    if norm is not None:
        delta = norm.plain(delta)
    return delta if scale == 1.0 else delta * scale


def _summed(delta: Delta, residual: Stream, norm: Norm | None) -> tuple[Delta | None, Stream]:
    """(output still to add, stream): with a norm behind the sum, nothing and a new stream."""
    if norm is None:
        return delta, residual
    return None, _settled(norm.add(delta, residual))
