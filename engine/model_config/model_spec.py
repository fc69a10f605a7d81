"""What a model of text is made of, whatever file described it, and what follows from that. Torch-free.

A model is its layers, and a layer is a mixer of tokens and a feed-forward network, with norms around them: values, so
that a family is a reader of its files and no code of its own. Shapes of weights, bytes of cache and work a token are
derived here and where mixers and networks are described, and written nowhere else.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from .attention_spec import AttentionSpec, CacheSpec, LatentAttentionSpec
from .config_fields import LONGEST_CONTEXT, ConfigError
from .mlp_spec import FeedForwardSpec, MLPSpec
from .recurrent_spec import GatedDeltaSpec, Mamba2Spec, MambaSpec, ShortConvSpec, StateTensor
from .streams_spec import AltUpSpec, LaurelSpec

LayerType = Literal["full", "sliding"]
NormKind = Literal["rms", "layer"]


@dataclass(frozen=True)
class Norms:
    """The norms around a layer's two parts, by the names that they are stored under; "" is none.

    ``_in`` norms what a part takes of the residual stream, ``_out`` what it gives before that is added, ``_sum`` the
    stream itself once it is added.
    """

    mixer_in: str = ""
    mixer_out: str = ""
    mixer_sum: str = ""
    cross_in: str = ""
    mlp_in: str = ""
    mlp_out: str = ""
    mlp_sum: str = ""
    kind: NormKind = "rms"
    bias: bool = False
    """Only of kind ``layer``."""
    weighted: bool = True
    """Whether they have weights."""

    def shapes(self, prefix: str, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Of what is stored."""
        if not self.weighted:
            return
        mixer, cross, mlp = (self.mixer_in, self.mixer_out, self.mixer_sum), self.cross_in, (self.mlp_in, self.mlp_out)
        for name in filter(None, (*mixer, cross, *mlp, self.mlp_sum)):
            yield f"{prefix}.{name}.weight", (hidden,)
            if self.bias:
                yield f"{prefix}.{name}.bias", (hidden,)


PRE = Norms(mixer_in="input_layernorm", mlp_in="post_attention_layernorm")
"""Llama's."""
POST = Norms(mixer_out="post_attention_layernorm", mlp_out="post_feedforward_layernorm")
"""OLMo-2's."""
POST_SUM = Norms(mixer_sum="post_attention_layernorm", mlp_sum="post_mlp_layernorm", kind="layer", bias=True)
"""BERT's."""
SANDWICH = Norms(
    mixer_in="input_layernorm",
    mixer_out="post_attention_layernorm",
    mlp_in="pre_feedforward_layernorm",
    mlp_out="post_feedforward_layernorm",
)
"""Gemma-2's."""


RecurrentSpec = ShortConvSpec | GatedDeltaSpec | Mamba2Spec | MambaSpec
MixerSpec = AttentionSpec | LatentAttentionSpec | RecurrentSpec
BesideSpec = RecurrentSpec | LaurelSpec


@dataclass(frozen=True)
class LayerSpec:
    """One layer: its mixer, its feed-forward network, and the norms around both. It may lack either (Nemotron-H)."""

    mixer: MixerSpec | None
    mlp: FeedForwardSpec | None
    norms: Norms = PRE
    beside: BesideSpec | None = None
    """A mixer that takes what the first takes; what both give is added (Falcon-H1)."""
    mixer_scale: float = 1.0
    """Multiplies what the mixer gives."""
    beside_scale: float = 1.0
    """Multiplies what the mixer beside it gives."""
    mlp_scale: float = 1.0
    """Multiplies what the network gives."""
    sum_scale: float = 1.0
    """Multiplies the stream once what mixers give is added (Gemma 3n)."""
    cross: AttentionSpec | None = None
    """Attention to audio, between both."""
    scalar: str = ""
    """The name of a learned number that multiplies the stream behind the layer."""
    parallel: bool = False
    """The network takes what the mixer takes, not what the mixer leaves (GPT-J), or where both have a norm, another
    norm of the same (GPT-NeoX)."""

    @property
    def attention(self) -> AttentionSpec:
        """The mixer of a layer that attends."""
        assert isinstance(self.mixer, AttentionSpec), f"{type(self.mixer).__name__} does not attend"
        return self.mixer

    @property
    def mixers(self) -> tuple[MixerSpec | BesideSpec, ...]:
        """All that it has: none, one, or two side by side."""
        return tuple(mixer for mixer in (self.mixer, self.beside) if mixer is not None)

    @property
    def keeps(self) -> CacheSpec | None:
        """What it keeps of a token beside states."""
        return next((mixer.keeps for mixer in self.mixers if mixer.keeps is not None), None)

    def states(self, hidden: int) -> tuple[StateTensor, ...]:
        """What it keeps of a sequence, whatever its length."""
        return tuple(tensor for mixer in self.mixers for tensor in mixer.states(hidden))

    def shapes(self, prefix: str, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Of what a checkpoint stores of it."""
        for part in (self.mixer, self.beside, self.cross, self.mlp):
            if part is not None:
                yield from part.shapes(prefix, hidden)
        yield from self.norms.shapes(prefix, hidden)
        if self.scalar:
            yield f"{prefix}.{self.scalar}", (1,)

    def products(self, hidden: int) -> int:
        """Elements of the matrices that a token is multiplied with, each once."""
        mixed = sum(projection.elements for mixer in self.mixers for projection in mixer.projections(hidden))
        return mixed + (0 if self.mlp is None else self.mlp.products(hidden))

    def check(self) -> None:
        """Raises :class:`ConfigError` where its parts contradict each other."""
        for part in (self.mixer, self.beside, self.mlp):
            if part is not None:
                part.check()


@dataclass(frozen=True)
class PerLayerSpec:
    """A small embedding of each token for every layer (Gemma 3n, Gemma 4)."""

    vocab_size: int
    dim: int
    media_token: int = 0
    """Stands for all media, which have no tokens."""

    def outer_shapes(self, layers: int, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Of what all layers share."""
        yield "model.embed_tokens_per_layer.weight", (self.vocab_size, layers * self.dim)
        yield "model.per_layer_model_projection.weight", (layers * self.dim, hidden)
        yield "model.per_layer_projection_norm.weight", (self.dim,)

    def shapes(self, prefix: str, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Of what a layer has besides."""
        yield f"{prefix}.per_layer_input_gate.weight", (self.dim, hidden)
        yield f"{prefix}.per_layer_projection.weight", (hidden, self.dim)
        yield f"{prefix}.post_per_layer_input_norm.weight", (hidden,)


@dataclass(frozen=True)
class TaskAdapters:
    """Low-rank additions to embeddings and all products of layers, a set for each task (Jina v3, arXiv:2409.10173)."""

    names: tuple[str, ...]
    """Of the tasks, in the order in which they are stored."""
    rank: int
    scale: float


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """From tokens to hidden states: what decoders and encoders have in common."""

    architecture: str
    """transformers' class name, for messages."""
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    max_position: int
    norm_eps: float
    norm_plus_one: bool = False
    """Norms multiply by (1 + weight) (Gemma, Nemotron)."""
    residual_scale: float = 1.0
    """Multiplies what each part of a layer adds to the residual stream."""
    prefix: str = "model.layers"
    """Before the number of a layer, where its tensors are named."""
    adapters: TaskAdapters | None = None
    per_layer: PerLayerSpec | None = None
    altup: AltUpSpec | None = None
    """None: there is one residual stream."""
    text_part: bool = False
    """The checkpoint is of a model that sees images too; its other tensors are left out."""

    @property
    def output_size(self) -> int:
        """Of the hidden states that a pooling model is given."""
        return self.hidden_size

    @property
    def states(self) -> dict[int, tuple[StateTensor, ...]]:
        """Of each layer that has a recurrent state, what it keeps of a sequence, whatever its length."""
        found = {number: layer.states(self.hidden_size) for number, layer in enumerate(self.layers)}
        return {number: tensors for number, tensors in found.items() if tensors}

    def cache_index(self, layer: int) -> int:
        """Which of the caches of layers that keep something of a token, in their order, is this layer's."""
        return sum(before.keeps is not None for before in self.layers[:layer])

    def state_bytes(self, inputs: int, recurrent: int) -> int:
        """Of the recurrent states of a sequence, by the bytes of an element: see :class:`StateTensor`."""
        return sum(tensor.nbytes(inputs, recurrent) for tensors in self.states.values() for tensor in tensors)

    def products(self, layer: int) -> int:
        """Elements of the matrices of a layer that a token is multiplied with, with each once."""
        own = 3 * self.per_layer.dim * self.hidden_size if self.per_layer else 0
        own += self.altup.products(self.hidden_size) if self.altup else 0
        return self.layers[layer].products(self.hidden_size) + own


@dataclass(frozen=True, kw_only=True)
class ModelSpec(Backbone):
    """One decoder."""

    tie_embeddings: bool = False
    head_bias: bool = False
    embedding: str = "model.embed_tokens"
    """The name that the embeddings are stored under."""
    positions: str = ""
    """The name of learned embeddings of :attr:`max_position` positions, which are added to the tokens' (GPT-2); "" is
    none."""
    positions_before: int = 0
    """Rows of theirs that no position has, before those of all (OPT)."""
    final_norm: str = "model.norm"
    """The name of the last norm, which is one of the kind that the layers have."""
    embedding_scale: float = 1.0
    scales_media: bool = False
    """What stands in place of embeddings is multiplied by :attr:`embedding_scale` too (Granite)."""
    embedding_norm: bool = False
    """Embeddings are normed, without weights."""
    logits_divisor: float = 1.0
    logits_softcap: float = 0.0
    bidirectional: bool = False
    """Tokens see those behind them too, in a window so many as before them: an embedder, which draws nothing."""
    draft_layers: int = 0
    """Heads for multi-token prediction that its checkpoints bring, as a layer each behind the last; see
    :mod:`.draft_head_spec`."""
    draft_prefix: str = ""
    """Before the names of the same, where they stand apart. Without :attr:`draft_layers` they are of an unknown form,
    and passed over."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every tensor that a checkpoint of plain weights holds, by name."""
        found: dict[str, tuple[int, ...]] = {f"{self.embedding}.weight": (self.vocab_size, self.hidden_size)}
        if self.positions:
            found[f"{self.positions}.weight"] = (self.max_position + self.positions_before, self.hidden_size)
        if self.per_layer is not None:
            found.update(self.per_layer.outer_shapes(len(self.layers), self.hidden_size))
        if self.altup is not None:
            found.update(self.altup.outer_shapes(self.hidden_size))
        for number, layer in enumerate(self.layers):
            found.update(layer.shapes(f"{self.prefix}.{number}", self.hidden_size))
            if self.per_layer is not None:
                found.update(self.per_layer.shapes(f"{self.prefix}.{number}", self.hidden_size))
            if self.altup is not None:
                found.update(self.altup.shapes(f"{self.prefix}.{number}", self.hidden_size))
        if self.layers[-1].norms.weighted:
            found[f"{self.final_norm}.weight"] = (self.hidden_size,)
        if self.layers[-1].norms.bias:
            found[f"{self.final_norm}.bias"] = (self.hidden_size,)
        if self.head_bias:
            found["lm_head.bias"] = (self.vocab_size,)
        if not self.tie_embeddings:
            found["lm_head.weight"] = (self.vocab_size, self.hidden_size)
        return found

    @property
    def parameters(self) -> int:
        return sum(map(math.prod, self.shapes().values()))

    @property
    def active_parameters(self) -> int:
        """Those that a token uses: all but those of the experts that it does not take."""
        networks = (layer.mlp for layer in self.layers if layer.mlp is not None)
        return self.parameters - sum(mlp.idle(self.hidden_size) for mlp in networks)

    @property
    def cache_groups(self) -> tuple[CacheSpec, ...]:
        """In the order in which layers first need them."""
        members: dict[CacheSpec, list[int]] = {}
        for number, layer in enumerate(self.layers):
            if (keeps := layer.keeps) is not None:
                members.setdefault(keeps, []).append(number)
        return tuple(replace(keeps, layers=tuple(layers)) for keeps, layers in members.items())

    def flops(self, tokens: int, context: int, sampled: int) -> int:
        """Multiplications and additions of a pass over ``tokens`` that follow ``context`` others: products with
        weights, attention to all that each token sees, and logits of ``sampled`` rows."""
        total = 2 * sampled * self.hidden_size * self.vocab_size
        for number, layer in enumerate(self.layers):
            mixing = sum(mixer.work(tokens, context) for mixer in layer.mixers)
            total += 2 * self.products(number) * tokens + mixing
        return total


def alternating_layers(layers: int, period: int) -> tuple[LayerType, ...]:
    """Each ``period``-th layer is a full one, the others slide."""
    types: list[LayerType] = ["full" if (layer + 1) % period == 0 else "sliding" for layer in range(layers)]
    return tuple(types)


B = TypeVar("B", bound=Backbone)


def with_mixers(spec: B, which: Sequence[bool] | None = None, **changes: Any) -> B:
    """The same with these fields of the attention of every layer that attends changed, or of those ``which`` says."""
    which = [True] * len(spec.layers) if which is None else which
    if len(which) != len(spec.layers):
        raise ConfigError(f"types are given for {len(which)} layers, expected {len(spec.layers)}")
    return replace(
        spec,
        layers=tuple(
            replace(layer, mixer=replace(layer.mixer, **changes))
            if chosen and isinstance(layer.mixer, AttentionSpec)
            else layer
            for layer, chosen in zip(spec.layers, which, strict=True)
        ),
    )


def with_layers(spec: B, **changes: Any) -> B:
    """The same with these fields of every layer changed."""
    return replace(spec, layers=tuple(replace(layer, **changes) for layer in spec.layers))


def dense_mlp(spec: Backbone) -> MLPSpec:
    """The network of the first layer, which is no mixture of experts."""
    mlp = spec.layers[0].mlp
    assert isinstance(mlp, MLPSpec)
    return mlp


def checked(spec: B) -> B:
    """The spec itself, or :class:`ConfigError` where its parts contradict each other."""
    if spec.max_position > LONGEST_CONTEXT:
        raise ConfigError(f"its context is {spec.max_position} tokens, expected at most {LONGEST_CONTEXT}")
    for layer in dict.fromkeys(spec.layers):
        layer.check()
    if spec.altup is not None:
        spec.altup.check()
    return spec
