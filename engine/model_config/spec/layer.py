"""One layer of a model: its parts, and the norms around them."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from ..config_fields import ConfigError
from .attention import AttentionSpec
from .attention_parts import AddedConvSpec
from .cache import CacheSpec
from .compressed_attention import CompressedAttentionSpec
from .latent_attention import LatentAttentionSpec
from .lightning import LightningSpec
from .mlp import FeedForwardSpec, MoESpec
from .projection import Projection
from .recurrent import (
    GatedDeltaSpec,
    Mamba2Spec,
    MambaSpec,
    RGLRUSpec,
    ShortConvSpec,
    StateTensor,
)
from .shared_block import SharedBlockSpec
from .streams import LaurelSpec, NGramSpec

NormKind = Literal["rms", "layer"]
_UNNAMED: Final[Mapping[str, Any]] = {
    f"{part}_{place}": "" for part in ("mixer", "cross", "mlp") for place in ("in", "out", "sum")
}
"""The fields of :class:`Norms` that name one."""


class Norms(msgspec.Struct, frozen=True):
    """The norms around a layer's two parts, by stored name; "": none.

    ``_in`` norms a part's input, ``_out`` its output before the addition, ``_sum`` the stream after the addition.
    """

    mixer_in: str = ""
    mixer_out: str = ""
    mixer_sum: str = ""
    cross_in: str = ""
    cross_out: str = ""
    cross_sum: str = ""
    mlp_in: str = ""
    mlp_out: str = ""
    mlp_sum: str = ""
    kind: NormKind = "rms"
    bias: bool = False
    """For kind ``layer`` only."""
    inputs: tuple[str, ...] = ()
    """What stands for ``{}`` in the name of ``mixer_in``, if the mixer takes several inputs side by side, each with a
    norm of its own (Inkling 2); all with one norm if nothing stands for it."""
    weighted: bool = True
    """Whether they have weights."""
    in_eps: float = 0.0
    """Epsilon of the norms of inputs, if it is another one (JetMoe); 0: the model's."""
    out_eps: float = 0.0
    """Epsilon of the norms of outputs, if it is another one (Muse Glimmer); 0: the model's."""
    offsets: tuple[tuple[str, float], ...] = ()
    """Stored names of those that multiply by their weight and this number (PLaMo 3), whatever
    :attr:`.model.Backbone.norm_plus_one` is: 0 for a last norm that alone multiplies by its weight (Muse Glimmer)."""
    unweighted: tuple[str, ...] = ()
    """Names of those that have no weights, if others do (Muse Spark)."""
    scaled_first: tuple[str, ...] = ()
    """Stored names of those that norm what they have multiplied by 1 + weight (Muse Spark)."""
    gated: tuple[str, ...] = ()
    """Stored names of those whose output y is multiplied by sigmoid(up(silu(down(y)))) (A.X K2)."""
    gate_rank: int = 0
    """Outputs of ``down``."""
    groups: int = 1
    """Equal parts of what they norm, each of which is normed alone (K2 Horizon)."""
    renews: bool = False
    """Whether the stream continues from the outputs of the norms of inputs (MiniMax-01), not from the sums that they
    norm."""

    def of_no_part(self) -> "Norms":
        """Those of a layer that has no parts. The model's first and last norms are of their kind."""
        return replace(self, **_UNNAMED, renews=False)

    def gate_of(self, name: str, hidden: int) -> tuple[Projection, Projection]:
        """The products of the gate of the norm with this stored name: down and up."""
        return (
            Projection(((f"{name}.W_down", self.gate_rank),), hidden, False),
            Projection(((f"{name}.W_up", hidden),), self.gate_rank, False),
        )

    def shapes(self, prefix: str, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Shapes of its stored tensors, by name."""
        if not self.weighted:
            return
        mixer, cross = (self.mixer_in, self.mixer_out, self.mixer_sum), (self.cross_in, self.cross_out, self.cross_sum)
        for name in filter(None, (*mixer, *cross, self.mlp_in, self.mlp_out, self.mlp_sum)):
            if name in self.unweighted:
                continue
            if self.inputs and name == self.mixer_in:
                yield from ((f"{prefix}.{name.format(each)}.weight", (hidden,)) for each in self.inputs)
                continue
            if name in self.gated:
                yield f"{prefix}.{name}.norm.weight", (hidden,)
                yield from (shape for product in self.gate_of(name, hidden) for shape in product.shapes(prefix))
                continue
            yield f"{prefix}.{name}.weight", (hidden,)
            if self.bias:
                yield f"{prefix}.{name}.bias", (hidden,)


PRE = Norms(mixer_in="input_layernorm", mlp_in="post_attention_layernorm")
"""Llama."""


RecurrentSpec = ShortConvSpec | GatedDeltaSpec | Mamba2Spec | MambaSpec | LightningSpec | RGLRUSpec


MixerSpec = AttentionSpec | LatentAttentionSpec | CompressedAttentionSpec | RecurrentSpec


BesideSpec = RecurrentSpec | LaurelSpec


class LayerSpec(msgspec.Struct, frozen=True):
    """One layer: its mixer, its network, and their norms. It may lack either part (Nemotron-H)."""

    mixer: MixerSpec | None
    mlp: FeedForwardSpec | None
    norms: Norms = PRE
    beside: BesideSpec | None = None
    """A second mixer with the same input, whose output is added (Falcon-H1)."""
    mixer_scale: float = 1.0
    """Factor on the mixer's output."""
    beside_scale: float = 1.0
    """Factor on the second mixer's output."""
    mlp_scale: float = 1.0
    """Factor on the network's output."""
    sum_scale: float = 1.0
    """Factor on the residual stream after the mixers' outputs are added (Gemma 3n)."""
    stream_scales: tuple[float, float] = (1.0, 1.0)
    """Factors on the residual stream before the outputs of mixer and network are added (MiniMax-01)."""
    cross: AttentionSpec | None = None
    """Cross-attention between both."""
    picture_gates: tuple[str, str] | None = None
    """Stored names of learned numbers by whose tanh the outputs of cross-attention and network are multiplied, if both
    are of tokens that see a picture and other tokens pass the layer as they are (Llama 3.2 Vision)."""
    sums: tuple[str, str] | None = None
    """Stored names of scales and biases of the stream and of what is added to it, behind mixer and network (ZAYA)."""
    out_convs: tuple[AddedConvSpec | None, AddedConvSpec | None] = (None, None)
    """Convolutions of the outputs of mixer and network before they are added to the stream (Inkling)."""
    sum_temperature: float = 0.0
    """If not 0, :attr:`sums` are gated instead: b · output + √(1 - b²) · stream by channel, where b = sigmoid(gate /
    temperature) (Muse Spark)."""
    sum_rate: float = 0.0
    """If not 0, :attr:`sums` are steps from the stream to the output instead: stream + |rate · r| · (output - stream)
    with a learned r of each channel, which has the stored name itself (Dory)."""
    block: SharedBlockSpec | None = None
    """What is added to the mixer's input alone (Zamba2)."""
    unused: tuple[str, ...] = ()
    """Stored names of tensors that files may have and the layer does not use."""
    scalar: str = ""
    """Stored name of a learned factor on the stream behind the layer."""
    ngrams: NGramSpec | None = None
    """What it adds to several streams before its mixer (Qwen4)."""
    shortcut: MoESpec | None = None
    """Experts that take what the network takes, and whose output is added behind the next layer (LongCat). In a layer
    without other parts they take the stream, behind a norm (Arctic)."""
    parallel: bool = False
    """Whether the network takes the mixer's input, not its output (GPT-J); with two norms, its own norm of that input
    (GPT-NeoX)."""

    @property
    def attention(self) -> AttentionSpec:
        """The mixer of a layer with attention."""
        assert isinstance(self.mixer, AttentionSpec), f"{type(self.mixer).__name__} does not attend"
        return self.mixer

    @property
    def crossing(self) -> AttentionSpec | None:
        """Its attention to what an encoder made; None without."""
        merged = isinstance(self.mixer, AttentionSpec) and self.mixer.merged
        return self.attention if merged else self.cross

    @property
    def mixers(self) -> tuple[MixerSpec | BesideSpec, ...]:
        """Its mixers: none, one, or two in parallel."""
        return tuple(mixer for mixer in (self.mixer, self.beside) if mixer is not None)

    @property
    def networks(self) -> tuple[FeedForwardSpec, ...]:
        """Its networks: none, one, or two."""
        return tuple(network for network in (self.mlp, self.shortcut) if network is not None)

    @property
    def keeps(self) -> CacheSpec | None:
        """Its cache a token; None without."""
        parts = self.mixers if self.block is None else (self.block, *self.mixers)
        return next((part.keeps for part in parts if part.keeps is not None), None)

    def states(self, hidden: int) -> tuple[StateTensor, ...]:
        """Its recurrent states of a sequence, of fixed size."""
        parts = self.mixers if self.ngrams is None else (*self.mixers, self.ngrams)
        found = tuple(tensor for part in parts for tensor in part.states(hidden))
        return (*found, *(conv.state for conv in self.out_convs if conv is not None))

    def shapes(self, prefix: str, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Shapes of its stored tensors, by name."""
        for part in (self.ngrams, self.mixer, self.beside, self.cross, *self.networks):
            if part is not None:
                yield from part.shapes(prefix, hidden)
        yield from self.norms.shapes(prefix, hidden)
        for conv in self.out_convs:
            yield from () if conv is None else conv.shapes(prefix)
        for name in self.sums or ():
            if self.sum_temperature or self.sum_rate:
                yield f"{prefix}.{name}.gate" if self.sum_temperature else f"{prefix}.{name}", (hidden,)
                continue
            for which in ("hidden_states", "residual"):
                yield f"{prefix}.{name}.{which}_scale", (hidden,)
                yield f"{prefix}.{name}.{which}_bias", (hidden,)
        for name in (self.scalar, *(self.picture_gates or ())):
            if name:
                yield f"{prefix}.{name}", (1,)

    def products(self, hidden: int) -> int:
        """Weights that a token is multiplied by."""
        mixed = sum(projection.elements for mixer in self.mixers for projection in mixer.projections(hidden))
        mixed += 0 if self.ngrams is None else self.ngrams.products(hidden)
        mixed += 0 if self.block is None else sum(product.elements for product in self.block.projections(hidden))
        mixed += 2 * len(self.norms.gated) * self.norms.gate_rank * hidden
        return mixed + sum(network.products(hidden) for network in self.networks)

    def check(self) -> None:
        """Raise :class:`ConfigError` for contradictory fields."""
        for part in (self.ngrams, self.block, self.mixer, self.beside, self.cross, *self.networks):
            if part is not None:
                part.check()
        if self.block is not None and (self.mixer is None or not self.norms.mixer_in or self.norms.renews):
            raise ConfigError("a shared block without a mixer behind it that has a norm is not known")
        apart = self.mixer is None or self.mlp is None or self.parallel or self.norms.renews
        if self.sums is not None and apart and not (self.norms.renews and self.sum_rate):
            raise ConfigError("scaled sums in layers without two parts, one behind the other, are not known")
        for conv in filter(None, self.out_convs):
            conv.check()
            if apart or self.sums is not None or self.ngrams is not None:
                raise ConfigError("convolved outputs in layers without two parts, one behind the other, are not known")
        if self.shortcut is not None and (self.parallel or (self.mlp is None and self.mixer is not None)):
            raise ConfigError("experts that take the input of no network, or of one beside the mixer, are not known")
        if self.shortcut is not None and not self.norms.mlp_in:
            raise ConfigError("experts that take a stream without a norm are not known")


class PerLayerSpec(msgspec.Struct, frozen=True):
    """Per-layer inputs of tokens: projected embeddings, with embeddings of each layer (Gemma 3n, Gemma 4) or without
    (EmbeddingGemma 2)."""

    vocab_size: int
    """0: there are no embeddings of each layer."""
    dim: int
    media_token: int = 0
    """The token whose embedding all media use."""
    name: str = "model"
    """Prefix of the names of tensors that all layers share."""
    block: str = ""
    """Prefix of those of a layer, within it."""

    def outer_shapes(self, layers: int, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Shapes of the tensors that all layers share."""
        if self.vocab_size:
            yield f"{self.name}.embed_tokens_per_layer.weight", (self.vocab_size, layers * self.dim)
        yield f"{self.name}.per_layer_model_projection.weight", (layers * self.dim, hidden)
        yield f"{self.name}.per_layer_projection_norm.weight", (self.dim,)

    def shapes(self, prefix: str, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Shapes of the tensors of one layer."""
        yield f"{prefix}.{self.block}per_layer_input_gate.weight", (self.dim, hidden)
        yield f"{prefix}.{self.block}per_layer_projection.weight", (hidden, self.dim)
        yield f"{prefix}.{self.block}post_per_layer_input_norm.weight", (hidden,)
