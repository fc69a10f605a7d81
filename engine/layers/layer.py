"""One layer of a decoder or encoder, described by a :class:`..model_config.spec.layer.LayerSpec`."""

from copy import copy
from typing import NamedTuple

import torch

from ..model_config.spec.attention import AttentionSpec
from ..model_config.spec.attention_parts import AddedConvSpec
from ..model_config.spec.compressed_attention import CompressedAttentionSpec
from ..model_config.spec.latent_attention import LatentAttentionSpec
from ..model_config.spec.layer import LayerSpec, MixerSpec, RecurrentSpec
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
from .attention.local_attention import LocalAttention
from .attention.loop_attention import LoopAttention
from .attention.merged_attention import MergedAttention
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
from .scaled_sum import GatedSum, RatedSum, ScaledSum, StreamSum
from .shared_block import SharedBlock, SharedWeights
from .sublayer import P, Sublayer, scaled, summed

Mixer = Attention | LocalAttention | LoopAttention | SharedAttention | LatentAttention | CompressedAttention | Recurrent


class Layer:
    """A mixer and a feed-forward network, or one of them, around a residual stream. Each other part is optional::

        stream + output of the former layer
          │
          ├─► shared block ─► + (in the mixer's input alone)
          ├─► norm ─┬─► mixer ─► norm ─► convolution ─┐
          │         ├─► second mixer ─────────────────┤
          │         └─► network, where it is parallel ┤ (nothing follows then)
          + ◄─────────────────────────────────────────┘
          norm; · sum scale
          ├─► norm ─► cross-attention ─► norm ─► + ─► norm
          ├─► norm ─┬─► network ─► norm ─► convolution ─► + ─► norm
          │         └─► shortcut experts, added behind the next layer's network
          + shortcut of the former layer
          + per-layer input; · scalar

    Mixer and network each are a :class:`.Sublayer`, which has their norms, factors and convolution.
    """

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
        parts = _PartMaker(weights, layer, model, spec, context)
        self._block = parts.shared_block(rotary, blocks)
        mixer, self._second_mixer = parts.mixer(rotary), parts.second_mixer(rotary)
        self.cross = CrossAttention(weights, layer, model, spec.cross, context) if spec.cross else None
        network, self._shortcut = parts.network(), parts.shortcut()
        of_mixer, of_cross, of_network = parts.norms(mixer, network)
        convs, sums, stream_scales = parts.convs(), parts.sums(), spec.stream_scales
        self._mixer = (
            None
            if mixer is None
            else parts.sublayer(mixer, of_mixer, convs[0], sums[0], spec.mixer_scale, stream_scales[0])
        )
        self._second_scale = model.residual_scale * spec.beside_scale
        self._sum_scale = spec.sum_scale
        self._parallel = spec.parallel
        self._cross_norms = of_cross
        self._network = (
            None
            if network is None
            else parts.sublayer(network, of_network, convs[1], sums[1], spec.mlp_scale, stream_scales[1])
        )
        # experts with a network beside them take its input
        self._shortcut_in = of_network.into if network is None else None
        self._ends_shortcut = layer > 0 and model.layers[layer - 1].shortcut is not None
        self._per_layer = PerLayer(weights, layer, model, inputs, context) if inputs else None
        self._scalar = parts.scalar()
        weights.pass_over(*(f"{parts.prefix}.{name}" for name in spec.unused))

    def again(
        self, weights: WeightMap, layer: int, model: Backbone, rotary: RotaryTables, context: LayerContext
    ) -> "Layer":
        """The layer numbered ``layer``, of a later loop, with the weights of this one, whose mixer must attend."""
        found = copy(self)
        if self._network is not None:
            found._network = self._network.of(self._network.part, layer)
        if self._mixer is None:
            return found
        attention = self._mixer.part
        assert isinstance(attention, Attention)
        if model.layers[layer].attention.loop is not None:
            found._mixer = self._mixer.of(LoopAttention(attention, weights, layer, model, rotary, context), layer)
        else:
            found._mixer = self._mixer.of(attention.again(model.cache_index(layer), layer), layer)
        return found

    def __call__(
        self, delta: Delta | None, residual: Stream, batch: ForwardBatch, given: Stream | None = None
    ) -> tuple[Delta | None, Stream]:
        """Run the layer; returns its output, not yet added, and the stream.

        ``delta`` [tokens, hidden], the former layer's output, is first added to the stream ``residual`` in place.
        ``given``: input of the mixer in place of the stream.
        """
        if self._mixer is not None:
            delta, residual = self._mixed(self._mixer, delta, residual, batch, given)
            if self._parallel:
                return delta, residual
        if self.cross is not None:
            norms = self._cross_norms
            delta = scaled(self.cross(joined(delta, residual, norms.into), batch), 1.0, norms.out)
            if norms.total is not None:
                residual, delta = summed(delta, residual, norms.total), None
        if self._network is not None:
            delta, residual = self._fed_forward(self._network, delta, residual, batch)
        elif self._shortcut is not None and self._shortcut_in is not None:
            residual, delta = residual if delta is None else added_(residual, delta), None
            batch.carried.output = self._shortcut(self._shortcut_in.plain(residual), batch)
        if self._per_layer is None and self._scalar is None:
            return delta, residual
        return None, self._completed(delta, residual, batch)

    @property
    def reads(self) -> CrossAttention | MergedAttention | None:
        """What attends to an encoder's output."""
        part = None if self._mixer is None else self._mixer.part
        return part if isinstance(part, MergedAttention) else self.cross

    def keep(self, x: torch.Tensor, batch: ForwardBatch) -> None:
        """Write keys and values of x [tokens, hidden], which the norm of the layer's input does not change."""
        assert self._mixer is not None
        assert isinstance(self._mixer.part, Attention | CompressedAttention), "blocks are drafted with these alone"
        self._mixer.part.keep(x, batch)

    def _mixed(
        self, mixer: Sublayer[Mixer], delta: Delta | None, residual: Stream, batch: ForwardBatch, given: Stream | None
    ) -> tuple[Delta | None, Stream]:
        """(what is still to be added, stream) behind the mixer and the parts that share its input."""
        if self._block is not None:
            residual, delta = residual if delta is None else added_(residual, delta), None
            assert mixer.into is not None
            given = mixer.into.plain(self._block(residual, batch))
        x, residual = mixer.input(delta, residual) if given is None else (given, residual)
        delta, residual = mixer.output(x, residual, batch)
        if self._second_mixer is not None:
            delta, residual = scaled(self._second_mixer(x, batch), self._second_scale), added_(residual, delta)
        if self._parallel:
            network = self._network
            assert network is not None
            x = x if network.into is None else network.into(residual)
            return scaled(network.part(x, batch), network.scale), added_(residual, delta)
        delta, residual = mixer.added(delta, residual)
        if self._sum_scale != 1.0:
            residual = residual if delta is None else added_(residual, delta)
            delta, residual = None, scaled_(residual, self._sum_scale)
        return delta, residual

    def _fed_forward(
        self, network: Sublayer[MLP | MoE], delta: Delta | None, residual: Stream, batch: ForwardBatch
    ) -> tuple[Delta | None, Stream]:
        """(what is still to be added, stream) behind the network and the former layer's shortcut."""
        x, residual = network.input(delta, residual)
        shortcut = None if self._shortcut is None else self._shortcut(x, batch)
        delta, residual = network.output(x, residual, batch)
        delta, residual = network.added(delta, residual)
        if self._ends_shortcut:
            residual = residual if delta is None else added_(residual, delta)
            delta = batch.carried.output
        batch.carried.output = shortcut
        return delta, residual

    def _completed(self, delta: Delta | None, residual: Stream, batch: ForwardBatch) -> Stream:
        """The stream with the layer's per-layer input added, and scaled."""
        if delta is not None:
            residual = added_(residual, delta)
        if self._per_layer is not None:
            residual = added_(residual, self._per_layer(residual, batch))
        return residual if self._scalar is None else scaled_(residual, self._scalar)


class _PartNorms(NamedTuple):
    """The norms of one part: of its input, of its output, and of the stream behind it."""

    into: Norm | None
    out: Norm | None
    total: Norm | None


class _PartMaker:
    """Makes the parts of one layer, or None where the spec has none.

    They are made, and their weights registered, in the order of :meth:`.LayerSpec.shapes`: products, norms,
    convolutions, sums.
    """

    def __init__(self, weights: WeightMap, layer: int, model: Backbone, spec: LayerSpec, context: LayerContext) -> None:
        self._weights, self._layer, self._model, self._spec, self._context = weights, layer, model, spec, context
        self.prefix = model.layer_prefix(layer)

    def shared_block(self, rotary: RotaryTables, blocks: dict[int, SharedWeights] | None) -> SharedBlock | None:
        """The layer's use of a block; the first layer that uses it puts its weights into ``blocks``."""
        weights, model, block, context = self._weights, self._model, self._spec.block, self._context
        if block is None:
            return None
        assert blocks is not None, "only a decoder of plain layers has blocks"
        if block.source not in blocks:
            blocks[block.source] = SharedWeights(weights, model, block, rotary, context)
        return SharedBlock(weights, self._layer, model, block, blocks[block.source], context)

    def mixer(self, rotary: RotaryTables) -> Mixer | None:
        spec = self._spec.mixer
        if spec is None:
            return None
        return make_mixer(self._weights, self._layer, self._model, spec, rotary, self._context)

    def second_mixer(self, rotary: RotaryTables) -> Laurel | Recurrent | None:
        """The second mixer, whose input is that of the first."""
        second = self._spec.beside
        if second is None:
            return None
        if isinstance(second, LaurelSpec):
            return Laurel(self._weights, self._layer, self._model, second, self._context)
        return _recurrent(self._weights, self._layer, self._model, second, rotary, self._context)

    def network(self) -> MLP | MoE | None:
        spec = self._spec.mlp
        if spec is None:
            return None
        return make_feed_forward(self._weights, self._layer, self._model, spec, self._context)

    def shortcut(self) -> MoE | None:
        """The experts whose output is added behind the next layer."""
        spec = self._spec.shortcut
        return None if spec is None else MoE(self._weights, self.prefix, spec, self._model.hidden_size, self._context)

    def scalar(self) -> torch.Tensor | None:
        """float32 [1]: the factor on the stream behind the layer."""
        if not self._spec.scalar:
            return None
        scalar = self._context.empty(1, dtype=torch.float32)
        self._weights.add(f"{self.prefix}.{self._spec.scalar}", scalar)
        return scalar

    def norms(self, mixer: Mixer | None, network: MLP | MoE | None) -> tuple[_PartNorms, _PartNorms, _PartNorms]:
        """Those of mixer, cross-attention and network; one before a product that alone takes its output may quantise
        it."""
        spec, names = self._spec, self._spec.norms
        # parts that share an input may need it quantised differently
        sums_input = isinstance(mixer, LocalAttention)
        mixer_shares = spec.beside or spec.parallel or spec.block or names.renews or names.inputs or sums_input
        network_shares = spec.shortcut or names.renews
        before_mixer = None if mixer is None or mixer_shares else mixer.into
        before_network = None if network is None or network_shares else network.input
        return (
            self._part_norms(names.mixer_in, names.mixer_out, names.mixer_sum, before_mixer),
            self._part_norms(names.cross_in, names.cross_out, names.cross_sum),
            self._part_norms(names.mlp_in, names.mlp_out, names.mlp_sum, before_network),
        )

    def _part_norms(self, into: str, out: str, total: str, before: Linear | None = None) -> _PartNorms:
        return _PartNorms(self._norm(into, before), self._norm(out), self._norm(total))

    def _norm(self, name: str, before: Linear | None = None) -> Norm | None:
        if not name:
            return None
        return make_norm(self._weights, f"{self.prefix}.{name}", self._spec.norms, self._model, self._context, before)

    def convs(self) -> tuple[AddedConv | None, AddedConv | None]:
        """The convolutions of the outputs of mixer and network."""
        of_mixer, of_network = self._spec.out_convs
        # their states come behind those of the mixers, in the whole layer of which this may be a part
        last = len(self._model.layers[self._layer].states(self._model.hidden_size)) - 1
        return self._conv(of_mixer, last - 1), self._conv(of_network, last)

    def _conv(self, spec: AddedConvSpec | None, state: int) -> AddedConv | None:
        return None if spec is None else AddedConv(self._weights, self.prefix, spec, self._layer, state, self._context)

    def sums(self) -> tuple[StreamSum | None, StreamSum | None]:
        """What adds the outputs of mixer and network to the stream, if these are no plain sums."""
        if self._spec.sums is None:
            return None, None
        of_mixer, of_network = (self._sum(f"{self.prefix}.{name}") for name in self._spec.sums)
        return of_mixer, of_network

    def _sum(self, name: str) -> StreamSum:
        hidden = self._model.hidden_size
        if temperature := self._spec.sum_temperature:
            return GatedSum(self._weights, name, hidden, temperature, self._context)
        if rate := self._spec.sum_rate:
            return RatedSum(self._weights, name, hidden, rate, self._context)
        return ScaledSum(self._weights, name, hidden, self._context)

    def sublayer(
        self,
        part: P,
        norms: _PartNorms,
        conv: AddedConv | None,
        total: StreamSum | None,
        scale: float,
        stream_scale: float,
    ) -> Sublayer[P]:
        """``part``, a mixer or a network, with what is around it."""
        return Sublayer(
            part,
            norms.into,
            norms.out,
            norms.total,
            scale=self._model.residual_scale * scale,
            stream_scale=stream_scale,
            renews=self._spec.norms.renews,
            conv=conv,
            total=total,
        )


def make_mixer(
    weights: WeightMap, layer: int, model: Backbone, spec: MixerSpec, rotary: RotaryTables, context: LayerContext
) -> Mixer:
    """The mixer of a layer."""
    match spec:
        case AttentionSpec(shares=shared) if shared >= 0:
            return SharedAttention(weights, layer, model, rotary, context)
        case AttentionSpec(merged=True):
            return MergedAttention(weights, layer, model, rotary, context)
        case AttentionSpec(window=window, distance_bias=bias) if window and bias is not None:
            return LocalAttention(weights, layer, model, rotary, context)
        case AttentionSpec():
            return Attention(weights, layer, model, rotary, context)
        case CompressedAttentionSpec():
            return CompressedAttention(weights, layer, model, rotary, context)
        case LatentAttentionSpec():
            return LatentAttention(weights, layer, model, rotary, context)
        case recurrent:
            return _recurrent(weights, layer, model, recurrent, rotary, context)


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
