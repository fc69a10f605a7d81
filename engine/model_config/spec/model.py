"""Describes a text model as values, independent of its file format, and derives sizes from them. Torch-free.

A model is its layers. A layer is a token mixer and a feed-forward network with norms around them. So a family is a
reader of its files, without code of its own. Shapes of weights, bytes of cache and work a token are derived only here
and in the specs of mixers and networks.
"""

import math
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from ..config_fields import LONGEST_CONTEXT, MOST_LAYERS, ConfigError
from .attention import AttentionSpec
from .cache import CacheSpec
from .latent_attention import LatentAttentionSpec
from .layer import LayerSpec, Norms, PerLayerSpec
from .mlp import OWN_ACTIVATIONS, Activation, MLPSpec
from .mtp_form import MTPForm, StagesForm
from .positions import RopeConfig
from .recurrent import StateTensor
from .streams import StreamsSpec
from .token_input import EMBEDDINGS, TokenInputSpec

LayerType = Literal["full", "sliding"]
HEADS: Final = (
    *("lm_head.weight", "embed_out.weight", "output.weight", "output_projection.weight", "head.weight"),
    *("transformer.output_layer.weight", "decoder.weight"),
)
"""Stored names of a head: the usual one, and those of GPT-NeoX, InternLM 2, BioGPT, DeepSeek-V4, ChatGLM and
ModernBERT's decoder."""


POST = Norms(mixer_out="post_attention_layernorm", mlp_out="post_feedforward_layernorm")
"""OLMo-2."""
POST_SUM = Norms(mixer_sum="post_attention_layernorm", mlp_sum="post_mlp_layernorm", kind="layer", bias=True)
"""BERT."""
SANDWICH = Norms(
    mixer_in="input_layernorm",
    mixer_out="post_attention_layernorm",
    mlp_in="pre_feedforward_layernorm",
    mlp_out="post_feedforward_layernorm",
)
"""Gemma-2."""


class Blend(NamedTuple):
    """Before :attr:`layer` the stream becomes share · s + (1 - share) · stream, where s is what it was before
    :attr:`source` (Solar Pro)."""

    layer: int
    source: int
    share: float
    summed: bool = False
    """Whether it becomes s + stream, whatever the share is (HRM)."""


class TaskAdapters(msgspec.Struct, frozen=True):
    """Task adapters: low-rank additions to embeddings and all products of layers (Jina v3, arXiv:2409.10173)."""

    names: tuple[str, ...]
    """The tasks, in stored order."""
    rank: int
    scale: float
    files: tuple[str, ...] = ()
    """The adapter files of the tasks, each with matrices of its own for each stored product (Jina v5, PEFT's form), or
    one file, whose matrices are named by task (Jina v4); empty: all tasks are in the checkpoint."""
    default: str = ""
    """The task of requests that name none; "": they use no adapter."""


class Backbone(msgspec.Struct, frozen=True, kw_only=True):
    """The common part of decoders and encoders: from tokens to hidden states."""

    architecture: str
    """transformers' class name, for messages."""
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    max_position: int
    norm_eps: float
    norm_plus_one: bool = False
    """Whether norms multiply by (1 + weight) (Gemma, Nemotron)."""
    residual_scale: float = 1.0
    """Factor on each part's addition to the residual stream."""
    prefix: str = "model.layers"
    """Prefix of a layer's number in tensor names."""
    stacks: tuple[str, ...] = ()
    """Prefixes of the stacks in which files have the stored layers, equally many in each (HRM); empty: there is one,
    :attr:`prefix`."""
    sublayers: int = 1
    """Layers that files number as one (LongCat); names of their parts have different endings."""
    runs: tuple[int, ...] = ()
    """The stored layer that each layer is, if some run several times, each time with caches of their own (Nanbeige 4.2,
    Ouro; Dory, of which some alone do); empty: each is stored."""
    adapters: TaskAdapters | None = None
    per_layer: PerLayerSpec | None = None
    streams: StreamsSpec | None = None
    """None: there is one residual stream."""
    text_part: bool = False
    """Whether the checkpoint is multimodal; its other tensors are ignored."""
    keys_of: "Backbone | None" = None
    """The model whose keys and values all layers use (:attr:`.attention.AttentionSpec.shares`), as those of Gemma
    4's assistants; None: their own."""

    @property
    def output_size(self) -> int:
        """Size of the hidden states for pooling."""
        return self.hidden_size

    @property
    def states(self) -> dict[int, tuple[StateTensor, ...]]:
        """The recurrent states of each layer that has some."""
        found = {number: layer.states(self.hidden_size) for number, layer in enumerate(self.layers)}
        return {number: tensors for number, tensors in found.items() if tensors}

    def layer_prefix(self, layer: int) -> str:
        """Prefix of the names of a layer's tensors."""
        if self.stacks:
            stack, number = divmod(self.stored(layer), (max(self.runs) + 1) // len(self.stacks))
            return f"{self.stacks[stack]}.{number}"
        return f"{self.prefix}.{self.stored(layer) // self.sublayers}"

    def stored(self, layer: int) -> int:
        """The stored layer that a layer is."""
        return self.runs[layer] if self.runs else layer

    def cache_index(self, layer: int) -> int:
        """A layer's index among the caches, in order of the layers with a cache."""
        return sum(before.keeps is not None for before in self.layers[:layer])

    def state_bytes(self, inputs: int, recurrent: int) -> int:
        """Bytes of a sequence's recurrent states, by the bytes of an element: see :class:`StateTensor`."""
        return sum(tensor.nbytes(inputs, recurrent) for tensors in self.states.values() for tensor in tensors)

    def products(self, layer: int) -> int:
        """Weights of a layer that a token is multiplied by."""
        own = 3 * self.per_layer.dim * self.hidden_size if self.per_layer else 0
        own += self.streams.products(self.hidden_size) if self.streams else 0
        return self.layers[layer].products(self.hidden_size) + own


class HeadTransformSpec(msgspec.Struct, frozen=True):
    """norm(activation(dense(x))) between the last norm and the head, of the hidden size (ModernBERT's decoder)."""

    activation: Activation = "gelu"
    bias: bool = False
    """Of ``dense``."""
    dense: str = "lm_head.dense"
    norm: str = "lm_head.norm"
    """Stored name of the norm, which is of the layers' kind."""


class ModelSpec(Backbone, frozen=True, kw_only=True):
    """A decoder, described as values: what its layers are, and the names and shapes of its stored weights."""

    tie_embeddings: bool = False
    unsaid: int = 0
    """Last tokens of the vocabulary, which have embeddings and no logits (the picture's of Llama 3.2 Vision)."""
    silent: tuple[tuple[int, int], ...] = ()
    """Tokens [first, end) whose logits are -inf, though they have some (those of Chameleon's pictures)."""
    float32_stream: bool = False
    """Whether the residual stream is float32 in any compute dtype (Step 5); that of a CPU's programs always is."""
    padded_head: bool = False
    """Whether the stored head has rows of those too, which are not used (Inkling)."""
    head_bias: bool = False
    head_transform: HeadTransformSpec | None = None
    """What stands before the head."""
    head_norm: Literal["rows", "columns"] | None = None
    """Parts of the stored head that are to be divided by their lengths: a row of a token (Baichuan 2), or a column over
    the vocabulary (Ling 1)."""
    embedding: str = "model.embed_tokens"
    """Stored name of the embeddings."""
    embedding_parts: tuple[str, str] | None = None
    """Endings of that name for the embeddings of the first and of the last tokens, if files have them apart (Molmo
    2)."""
    input: TokenInputSpec = EMBEDDINGS
    """What the first layer gets of tokens."""
    final_norm: str = "model.norm"
    """Stored name of the last norm, which is of the layers' kind; "": none (Qwen4)."""
    blends: tuple[Blend, ...] = ()
    """In order; what is kept before a layer has none of that layer's."""
    start: str = ""
    """Stored name of a learned vector that the stream of each token gets before the first layer, which blends with it
    do not have (HRM); "": none."""
    normed_before: tuple[int, ...] = ()
    """Layers before which the last norm also stands: those that begin a loop."""
    blocks_apart: bool = False
    """Whether files may number attention and network of a layer one by one, as ``mixer`` (Dory)."""
    expands_experts: bool = False
    """Whether files may have experts in four and eight bits that no description tells of (Inkling 2 Mini)."""
    logit_scales: str = ""
    """Stored name of a learned factor on each token's logit (Dory); "": none."""
    unused: tuple[str, ...] = ()
    """Stored names of tensors that files may have and the model does not use."""
    scales_media: bool = False
    """Whether embeddings of media, and those that prompts bring, are multiplied by the scale of :attr:`input` too
    (Granite)."""
    logits_divisor: float = 1.0
    logits_softcap: float = 0.0
    bidirectional: bool = False
    """Whether attention is bidirectional, with equal windows on both sides: an embedder without generation."""
    by_text: bool = False
    """Whether texts are computed whole, without caches, though attention is causal: a model with recurrent states that
    makes vectors or scores."""
    whole_prompts: bool = False
    """Whether all tokens of a prompt attend to each other, and only those behind it causally (PaliGemma)."""
    draft_layers: int = 0
    """Multi-token prediction heads in its checkpoints; see :mod:`..hf.draft_head`."""
    mtp: MTPForm | None = None
    """How the first of them is stored; None: in an unknown form, and all are ignored."""
    mtp_layer: LayerSpec | None = None
    """Its layer; None: as the model's last layer with attention."""
    stages: StagesForm | None = None
    """Its layers that draft blocks, each as :attr:`mtp_layer`; None: it has none, or in an unknown form."""
    draft_prefix: str = ""
    """Prefix of these heads if they are not stored as layers behind the last."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    @property
    def states(self) -> dict[int, tuple[StateTensor, ...]]:
        """As of its layers; the first one's end with that of n-grams of its input."""
        found = super().states
        if self.input.ngrams is None:
            return found
        return {**found, 0: (*found.get(0, ()), self.input.ngrams.state)}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors of a plain checkpoint, by name."""
        found: dict[str, tuple[int, ...]] = {f"{self.embedding}.weight": (self.vocab_size, self.hidden_size)}
        found |= self.input.shapes(self.max_position, self.hidden_size, biased=self.layers[0].norms.bias)
        for rope, dim in self.learned_ropes:
            found[rope.learned] = ((rope.rotary_dim or dim) // 2,)
        if self.per_layer is not None:
            found.update(self.per_layer.outer_shapes(len(self.layers), self.hidden_size))
        if self.streams is not None:
            found.update(self.streams.outer_shapes(self.hidden_size))
        for number, layer in enumerate(self.layers):
            if (block := layer.block) is not None:
                prefix, source = self.layer_prefix(number), self.layer_prefix(block.source)
                found.update(block.shapes(prefix, source, self.hidden_size, shared=number == block.source))
            found.update(layer.shapes(self.layer_prefix(number), self.hidden_size))
            if self.per_layer is not None:
                found.update(self.per_layer.shapes(f"{self.prefix}.{number}", self.hidden_size))
            if self.streams is not None:
                found.update(self.streams.shapes(self.layer_prefix(number), self.hidden_size, self.stored(number)))
        if self.final_norm and self.layers[-1].norms.weighted:
            found[f"{self.final_norm}.weight"] = (self.hidden_size,)
        if self.final_norm and self.layers[-1].norms.bias:
            found[f"{self.final_norm}.bias"] = (self.hidden_size,)
        if (transform := self.head_transform) is not None:
            found[f"{transform.dense}.weight"] = (self.hidden_size, self.hidden_size)
            biased = self.layers[-1].norms.bias
            names = [(transform.dense, transform.bias), (transform.norm, biased)]
            found |= {f"{name}.bias": (self.hidden_size,) for name, has in names if has}
            found[f"{transform.norm}.weight"] = (self.hidden_size,)
        if self.start:
            found[self.start] = (self.hidden_size,)
        if self.logit_scales:
            found[self.logit_scales] = (self.vocab_size,)
        if self.head_bias:
            found["lm_head.bias"] = (self.vocab_size,)
        if not self.tie_embeddings:
            found["lm_head.weight"] = (self.vocab_size - (0 if self.padded_head else self.unsaid), self.hidden_size)
        return found

    @property
    def expanded_parts(self) -> tuple[str, ...]:
        """Names of parts that are never multiplied in their stored format."""
        mixers = {layer.mixer for layer in self.layers if isinstance(layer.mixer, AttentionSpec)}
        return tuple(sorted({f"{mixer.name}.{mixer.into}" for mixer in mixers if mixer.chunk}))

    @property
    def learned_ropes(self) -> tuple[tuple[RopeConfig, int], ...]:
        """The rotations with learned frequencies, and the dimensions that rotate."""
        mixers = (layer.mixer for layer in self.layers if isinstance(layer.mixer, LatentAttentionSpec))
        rotating = ((mixer.rope, mixer.rope_dim) for mixer in mixers if mixer.rope is not None)
        return tuple(dict.fromkeys((rope, dim) for rope, dim in rotating if rope.learned))

    @property
    def parameters(self) -> int:
        return sum(map(math.prod, self.shapes().values()))

    @property
    def active_parameters(self) -> int:
        """Parameters that a token uses: without the experts, and rows of n-grams' tables, that it does not use."""
        networks = (network for layer in self.layers for network in layer.networks)
        tables = sum(layer.ngrams.idle for layer in self.layers if layer.ngrams is not None)
        return self.parameters - tables - sum(network.idle(self.hidden_size) for network in networks)

    @property
    def cache_groups(self) -> tuple[CacheSpec, ...]:
        """The cache groups, in the order of their first layers."""
        return cache_groups_of(self.layers)

    def flops(self, tokens: int, context: int, sampled: int) -> int:
        """Multiplications and additions of a pass over ``tokens`` behind ``context`` others: products with weights,
        attention, and logits of ``sampled`` rows."""
        total = 2 * sampled * self.hidden_size * self.vocab_size
        for number, layer in enumerate(self.layers):
            mixing = sum(mixer.work(tokens, context) for mixer in layer.mixers)
            mixing += 0 if layer.block is None else layer.block.work(tokens, context)
            total += 2 * self.products(number) * tokens + mixing
        return total


def cache_groups_of(layers: Sequence[LayerSpec]) -> tuple[CacheSpec, ...]:
    """The caches of layers, those that cache alike together, in the order of their first layers."""
    members: dict[CacheSpec, list[int]] = {}
    for number, layer in enumerate(layers):
        if (keeps := layer.keeps) is not None:
            members.setdefault(keeps, []).append(number)
    return tuple(replace(keeps, layers=tuple(numbers)) for keeps, numbers in members.items())


def alternating_layers(layers: int, period: int) -> tuple[LayerType, ...]:
    """Every ``period``-th layer is full, the others slide."""
    types: list[LayerType] = ["full" if (layer + 1) % period == 0 else "sliding" for layer in range(layers)]
    return tuple(types)


def with_mtp(spec: ModelSpec, form: MTPForm, heads: int, layer: LayerSpec | None = None) -> ModelSpec:
    """The spec with ``heads`` for multi-token prediction in this form; ``layer``: that of the first, if it differs from
    the model's last with attention."""
    prefix = form.prefix or spec.draft_prefix
    return replace(spec, draft_layers=heads, mtp=form, mtp_layer=layer, draft_prefix=prefix)


B = TypeVar("B", bound=Backbone)


def with_mixers(spec: B, which: Sequence[bool] | None = None, **changes: Any) -> B:
    """The spec with these fields changed in every layer with attention, or in those of ``which``."""
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
    """The spec with these fields changed in every layer."""
    return replace(spec, layers=tuple(replace(layer, **changes) for layer in spec.layers))


def looped(spec: ModelSpec, loops: int, *, norm: bool) -> ModelSpec:
    """The spec with its layers run ``loops`` times; ``norm``: whether the last norm also stands between them."""
    if loops * len(spec.layers) > MOST_LAYERS:
        raise ConfigError(f"{len(spec.layers)} layers run {loops} times, expected at most {MOST_LAYERS} in all")
    count = len(spec.layers)
    starts = range(count, loops * count, count)
    runs = tuple(range(count)) * loops if loops > 1 else ()
    return replace(spec, layers=spec.layers * loops, runs=runs, normed_before=tuple(starts) if norm else ())


def dense_mlp(spec: Backbone) -> MLPSpec:
    """The network of the first layer, which must be dense."""
    mlp = spec.layers[0].mlp
    assert isinstance(mlp, MLPSpec)
    return mlp


def checked(spec: B) -> B:
    """The spec. Raises :class:`ConfigError` for contradictory fields."""
    if spec.max_position > LONGEST_CONTEXT:
        raise ConfigError(f"its context is {spec.max_position} tokens, expected at most {LONGEST_CONTEXT}")
    for layer in dict.fromkeys(spec.layers):
        layer.check()
    tied = isinstance(spec, ModelSpec) and spec.tie_embeddings and spec.head_transform is None
    if isinstance(spec, ModelSpec) and tied and (spec.head_bias or spec.head_norm is not None):
        part = "bias" if spec.head_bias else "norm"
        raise ConfigError(f"tie_word_embeddings is true, expected false: a head that is the embedding has no {part}")
    if isinstance(spec, ModelSpec) and (before := spec.head_transform) and before.activation in OWN_ACTIVATIONS:
        raise ConfigError(f"{before.activation} before the head is not known")
    if spec.runs and any(not isinstance(layer.mixer, AttentionSpec) or layer.block for layer in spec.layers):
        raise ConfigError("layers that run several times with another mixer than attention are not known")
    if isinstance(spec, ModelSpec) and not all(
        0 <= each.source < each.layer < len(spec.layers) for each in spec.blends
    ):
        raise ConfigError("a stream is blended with what it is before a later layer")
    if spec.streams is not None:
        spec.streams.check()
    return spec
