"""One layer of a decoder or encoder, described by a :class:`..model_config.spec.layer.LayerSpec`."""

from copy import copy

import torch

from ..model_config.spec.attention import AttentionSpec
from ..model_config.spec.compressed_attention import CompressedAttentionSpec
from ..model_config.spec.latent_attention import LatentAttentionSpec
from ..model_config.spec.layer import BesideSpec, LayerSpec, MixerSpec, RecurrentSpec
from ..model_config.spec.lightning import LightningSpec
from ..model_config.spec.mlp import FeedForwardSpec, MoESpec, OpaqueSpec
from ..model_config.spec.model import Backbone
from ..model_config.spec.recurrent import GatedDeltaSpec, Mamba2Spec, MambaSpec, RGLRUSpec, ShortConvSpec
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
from .lightning import Lightning
from .linear.layer_context import LayerContext
from .linear.linear import Linear
from .linear.quantized import Delta, Stream
from .linear.weights import WeightMap
from .mlp import MLP
from .norm import Norm, added_, joined, make_norm
from .per_layer import PerLayer, PerLayerInputs, scaled_
from .recurrent import RGLRU, GatedDelta, Mamba, Mamba2, Recurrent, ShortConv
from .rotary import RotaryTables
from .scaled_sum import GatedSum, ScaledSum
from .shared_block import SharedBlock, SharedWeights
from .sublayer import Sublayer, scaled, summed

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
        prefix, norms = model.layer_prefix(layer), spec.norms

        def norm(name: str, before: Linear | None = None) -> Norm | None:
            return make_norm(weights, f"{prefix}.{name}", norms, model, context, before) if name else None

        self._block: SharedBlock | None = None
        if (block := spec.block) is not None:
            assert blocks is not None, "only a decoder of plain layers has blocks"
            if block.source not in blocks:
                blocks[block.source] = SharedWeights(weights, model, block, rotary, context)
            self._block = SharedBlock(weights, layer, model, block, blocks[block.source], context)
        mixer = None if spec.mixer is None else make_mixer(weights, layer, model, spec.mixer, rotary, context)
        self._beside = None if spec.beside is None else _other(weights, layer, model, spec.beside, rotary, context)
        self._beside_scale = model.residual_scale * spec.beside_scale
        self.cross = CrossAttention(weights, layer, model, spec.cross, context) if spec.cross else None
        network = None if spec.mlp is None else make_feed_forward(weights, layer, model, spec.mlp, context)
        self._shortcut: MoE | None = None
        self._shortcut_in: Norm | None = None
        if spec.shortcut is not None:
            self._shortcut = MoE(weights, prefix, spec.shortcut, model.hidden_size, context)
        # parallel parts share the input and may need it quantised differently
        alone = not (spec.beside or spec.parallel or norms.renews or spec.block)
        before_mixer = norm(norms.mixer_in, mixer.into if mixer is not None and alone else None)
        behind_mixer = norm(norms.mixer_out), norm(norms.mixer_sum)
        self._cross_in, self._cross_out, self._cross_sum = map(norm, (norms.cross_in, norms.cross_out, norms.cross_sum))
        alone = not (norms.renews or spec.shortcut)
        before_network = norm(norms.mlp_in, network.input if network is not None and alone else None)
        behind_network = norm(norms.mlp_out), norm(norms.mlp_sum)
        first = len(spec.states(model.hidden_size)) - len(spec.out_convs or ())
        convs = [
            AddedConv(weights, prefix, conv, layer, state, context)
            for state, conv in enumerate(spec.out_convs or (), first)
        ]
        conv_of_mixer, conv_of_network = convs or (None, None)
        sum_of_mixer, sum_of_network = _sums(weights, prefix, spec, model.hidden_size, context) or (None, None)
        self._mixer: Sublayer[Mixer] | None = None
        if mixer is not None:
            self._mixer = Sublayer(
                mixer,
                before_mixer,
                *behind_mixer,
                scale=model.residual_scale * spec.mixer_scale,
                stream_scale=spec.stream_scales[0],
                renews=norms.renews,
                conv=conv_of_mixer,
                total=sum_of_mixer,
            )
        self._network: Sublayer[MLP | MoE] | None = None
        if network is None and self._shortcut is not None:
            self._shortcut_in = before_network
        if network is not None:
            self._network = Sublayer(
                network,
                before_network,
                *behind_network,
                scale=model.residual_scale * spec.mlp_scale,
                stream_scale=spec.stream_scales[1],
                renews=norms.renews,
                conv=conv_of_network,
                total=sum_of_network,
            )
        self._ends_shortcut = layer > 0 and model.layers[layer - 1].shortcut is not None
        self._parallel, self._sum_scale = spec.parallel, spec.sum_scale
        self._own = PerLayer(weights, layer, model, inputs, context) if inputs else None
        weights.pass_over(*(f"{prefix}.{name}" for name in spec.unused))
        self._scalar: torch.Tensor | None = None
        if spec.scalar:
            self._scalar = context.empty(1, dtype=torch.float32)
            weights.add(f"{prefix}.{spec.scalar}", self._scalar)

    def again(
        self, weights: WeightMap, layer: int, model: Backbone, rotary: RotaryTables, context: LayerContext
    ) -> "Layer":
        """The layer numbered ``layer``, of a later loop, with the weights of this one, which must attend."""
        assert self._mixer is not None
        attention = self._mixer.part
        assert isinstance(attention, Attention)
        found = copy(self)
        if model.layers[layer].attention.loop is not None:
            found._mixer = self._mixer.of(LoopAttention(attention, weights, layer, model, rotary, context))
        else:
            found._mixer = self._mixer.of(attention.again(model.cache_index(layer)))
        return found

    def __call__(
        self, delta: Delta | None, residual: Stream, batch: ForwardBatch, given: Stream | None = None
    ) -> tuple[Delta | None, Stream]:
        """Run the layer; returns its output, not yet added, and the stream.

        ``delta`` [tokens, hidden], the former layer's output, is first added to the stream ``residual`` in place.
        ``given``: input of the mixer in place of the stream.
        """
        mixer, network = self._mixer, self._network
        if mixer is not None:
            if self._block is not None:
                residual, delta = residual if delta is None else added_(residual, delta), None
                assert mixer.into is not None
                given = mixer.into.plain(self._block(residual, batch))
            x, residual = mixer.input(delta, residual) if given is None else (given, residual)
            delta, residual = mixer.output(x, residual, batch)
            if self._beside is not None:
                delta, residual = scaled(self._beside(x, batch), self._beside_scale), added_(residual, delta)
            if self._parallel:
                assert network is not None
                x = x if network.into is None else network.into(residual)
                return scaled(network.part(x, batch), network.scale), added_(residual, delta)
            delta, residual = mixer.added(delta, residual)
            if self._sum_scale != 1.0:
                residual = residual if delta is None else added_(residual, delta)
                delta, residual = None, scaled_(residual, self._sum_scale)
        if self.cross is not None:
            delta = scaled(self.cross(joined(delta, residual, self._cross_in), batch), 1.0, self._cross_out)
            delta, residual = summed(delta, residual, self._cross_sum)
        if network is not None:
            x, residual = network.input(delta, residual)
            shortcut = None if self._shortcut is None else self._shortcut(x, batch)
            delta, residual = network.output(x, residual, batch)
            delta, residual = network.added(delta, residual)
            if self._ends_shortcut:
                residual = residual if delta is None else added_(residual, delta)
                delta = batch.carried.output
            batch.carried.output = shortcut
        elif self._shortcut is not None and self._shortcut_in is not None:
            residual, delta = residual if delta is None else added_(residual, delta), None
            batch.carried.output = self._shortcut(self._shortcut_in.plain(residual), batch)
        if self._own is None and self._scalar is None:
            return delta, residual
        return None, self._completed(delta, residual, batch)

    def _completed(self, delta: Delta | None, residual: Stream, batch: ForwardBatch) -> Stream:
        """The stream with the layer's per-layer input added, and scaled."""
        if delta is not None:
            residual = added_(residual, delta)
        if self._own is not None:
            residual = added_(residual, self._own(residual, batch))
        return residual if self._scalar is None else scaled_(residual, self._scalar)


def _sums(
    weights: WeightMap, prefix: str, spec: LayerSpec, hidden: int, context: LayerContext
) -> list[ScaledSum | GatedSum]:
    """What adds the outputs of both parts to the stream; none, if it is plain sums."""
    names = [f"{prefix}.{name}" for name in spec.sums or ()]
    if (temperature := spec.sum_temperature) != 0.0:
        return [GatedSum(weights, name, hidden, temperature, context) for name in names]
    return [ScaledSum(weights, name, hidden, context) for name in names]


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
            return _recurrent(weights, layer, model, recurrent, rotary, context)


def _other(
    weights: WeightMap, layer: int, model: Backbone, spec: BesideSpec, rotary: RotaryTables, context: LayerContext
) -> Laurel | Recurrent:
    """The second mixer of a layer, whose input is that of the first."""
    if isinstance(spec, LaurelSpec):
        return Laurel(weights, layer, model, spec, context)
    return _recurrent(weights, layer, model, spec, rotary, context)


def _recurrent(
    weights: WeightMap,
    layer: int,
    model: Backbone,
    spec: RecurrentSpec,
    rotary: RotaryTables,
    context: LayerContext,
) -> Recurrent:
    """A mixer with a recurrent state."""
    match spec:
        case ShortConvSpec():
            return ShortConv(weights, layer, model, spec, context)
        case GatedDeltaSpec():
            return GatedDelta(weights, layer, model, spec, context)
        case Mamba2Spec():
            return Mamba2(weights, layer, model, spec, context)
        case MambaSpec():
            return Mamba(weights, layer, model, spec, context)
        case LightningSpec():
            return Lightning(weights, layer, model, spec, rotary, context)
        case RGLRUSpec():
            return RGLRU(weights, layer, model, spec, context)


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
