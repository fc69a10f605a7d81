"""Reads T5 (arXiv:1910.10683), its versions 1.1 and Flan, mT5 (arXiv:2010.11934), UMT5 (arXiv:2304.09151), LongT5
(arXiv:2112.07916), whose encoder has windows and possibly sums of blocks, and Switch Transformers (arXiv:2101.03961),
some of whose layers have experts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from ..config_fields import LONGEST_CONTEXT, MOST_EXPERTS, MOST_LAYERS, ConfigError, Fields
from ..spec.attention import AttentionSpec
from ..spec.attention_parts import BlockSumsSpec
from ..spec.layer import LayerSpec, Norms
from ..spec.mlp import Activation, ExpertNames, MLPSpec, MoESpec, RouterSpec
from ..spec.model import Backbone
from ..spec.positions import DistanceBias
from ..spec.seq2seq import EMBEDDING
from ..spec.token_input import TokenInputSpec
from .text import Rename, Stack, TextToTextConfig, decoder_start_of, eos_of, never_of

ARCHITECTURES: Final = {
    "T5ForConditionalGeneration": "t5",
    "MT5ForConditionalGeneration": "mt5",
    "UMT5ForConditionalGeneration": "umt5",
    "LongT5ForConditionalGeneration": "longt5",
    "SwitchTransformersForConditionalGeneration": "switch_transformers",
}
"""Model types by architecture."""
POSITIONS: Final = 512
"""Tokens of training, where no field has them."""
_LONG_POSITIONS: Final = 4096
"""Those of LongT5."""
ACTIVATIONS: Final[Mapping[str, Activation]] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
_SELF: Final = r"(\w+)\.block\.(\d+)\.layer\.0\.(?:Local|TransientGlobal)?SelfAttention"
_RENAMES: Final = tuple(
    Rename(pattern, name)
    for pattern, name in (
        (r"(shared|(en|de)coder\.embed_tokens)(?=\.)", EMBEDDING),
        (r"(encoder|decoder)\.final_layer_norm(?=\.)", r"model.\1.norm"),
        (r"(\w+)\.block\.(\d+)\.layer\.0\.layer_norm(?=\.)", r"model.\1.layers.\2.self_norm"),
        (rf"{_SELF}\.([qkvo])(?=\.)", r"model.\1.layers.\2.self_attn.\3_proj"),
        (rf"{_SELF}(?=\.(relative|global))", r"model.\1.layers.\2.self_attn"),
        (r"decoder\.block\.(\d+)\.layer\.1\.layer_norm(?=\.)", r"model.decoder.layers.\1.cross_norm"),
        (r"decoder\.block\.(\d+)\.layer\.1\.EncDecAttention\.([qkvo])(?=\.)", r"model.decoder.layers.\1.cross.\2_proj"),
        (r"(\w+)\.block\.(\d+)\.layer\.[12]\.layer_norm(?=\.)", r"model.\1.layers.\2.mlp_norm"),
        (r"(\w+)\.block\.(\d+)\.layer\.[12]\.(?:DenseReluDense|mlp)(?=\.)", r"model.\1.layers.\2.mlp"),
    )
)
_SWITCH: Final[Mapping[str, object]] = {"d_model": 768, "num_layers": 12, "num_heads": 12}
"""Defaults of the class of Switch Transformers."""
_EXPERTS: Final = ExpertNames(
    router="mlp.router.classifier",
    into=("mlp.experts.expert_{}.wi.weight",),
    out="mlp.experts.expert_{}.wo.weight",
)
NORMS: Final = Norms(mixer_in="self_norm", mlp_in="mlp_norm")


def t5_config_from_hf(name: str, config: Mapping[str, object], generation: Mapping[str, object]) -> TextToTextConfig:
    """Read the config.json of the architecture ``name`` and a generation_config.json, which may be empty.

    Raises :class:`ConfigError` for a missing or wrong field.
    """
    kind = ARCHITECTURES[name]
    switch, long = kind == "switch_transformers", kind == "longt5"
    fields = Fields({**_SWITCH, **config} if switch else config)
    first = kind in ("t5", "longt5") or switch  # the defaults of their classes
    hidden, layers = fields.integer("d_model", 512), fields.integer("num_layers", 6 if first else 8, most=MOST_LAYERS)
    heads, eps = fields.integer("num_heads", 8 if first else 6), fields.positive("layer_norm_epsilon", 1e-6)
    vocab = fields.integer("vocab_size", 32128 if first else 250112)
    positions = fields.integer("n_positions", _LONG_POSITIONS if long else POSITIONS, most=LONGEST_CONTEXT)
    head_dim = fields.integer("d_kv", 64)
    attention = AttentionSpec(heads, heads, head_dim, 1.0, None)
    mlp = _dense(fields) if switch else _mlp(fields, "relu" if first else "gated-gelu")
    layer = LayerSpec(attention, mlp, NORMS)
    cross = replace(attention, name="cross")

    def stack(side: str, count: int) -> Stack:
        """Its layers share the numbers of the first; those of UMT5 have their own."""
        decodes, prefix = side == "decoder", f"model.{side}.layers"
        own = layer if not decodes else replace(layer, cross=cross, norms=replace(NORMS, cross_in="cross_norm"))
        biases = (
            DistanceBias(
                f"{prefix}.{number if kind == 'umt5' else 0}.self_attn.relative_attention_bias",
                fields.integer("relative_attention_num_buckets", 32),
                fields.integer("relative_attention_max_distance", 128),
                both_ways=not decodes,
            )
            for number in range(count)
        )
        made = tuple(replace(own, mixer=replace(attention, distance_bias=bias)) for bias in biases)
        if switch:
            made = tuple(_sparse(fields, made, mlp, side))
        if long and not decodes:
            made = tuple(replace(each, mixer=_near(fields, each.attention, f"{prefix}.0.self_attn")) for each in made)
        backbone = Backbone(
            architecture=name,
            vocab_size=vocab,
            hidden_size=hidden,
            layers=made,
            max_position=positions,
            norm_eps=eps,
            prefix=prefix,
        )
        return Stack(backbone, TokenInputSpec(), f"model.{side}.norm")

    decoding = fields.integer("num_decoder_layers", layers, most=MOST_LAYERS)
    decoder_start = decoder_start_of(config, generation)
    return TextToTextConfig(
        architecture=name,
        vocab_size=vocab,
        hidden_size=hidden,
        source_positions=positions,
        num_layers=decoding,
        num_heads=heads,
        max_position=positions,
        eos_token_ids=eos_of(config, generation) or (1,),
        encoder_stack=stack("encoder", layers),
        decoder_stack=stack("decoder", decoding),
        decoder_start=decoder_start or (fields.integer("pad_token_id", 0, least=0),),
        never=never_of(config, generation),
        bounded=False,
        scale_logits=hidden**-0.5 if _scales(fields, kind) else 1.0,
        renames=_RENAMES,
        head="" if fields.flag("tie_word_embeddings", True) else "lm_head",
        unused=("EncDecAttention.relative_attention_bias.weight",),
    ).check()


def _scales(fields: Fields, kind: str) -> bool:
    """Whether hidden states are scaled before the head: where it is the embedding, but not in mT5. Files of
    transformers 5 say so by a field of its own."""
    return kind != "mt5" and fields.flag("scale_decoder_outputs", fields.flag("tie_word_embeddings", True))


def _near(fields: Fields, attention: AttentionSpec, first: str) -> AttentionSpec:
    """Attention of LongT5's encoder, within a window and possibly to sums of blocks; ``first``: name of the attention
    of the first layer. Raises :class:`ConfigError`."""
    bias = attention.distance_bias
    assert bias is not None
    near = replace(attention, window=fields.integer("local_radius", 127, least=0, most=LONGEST_CONTEXT) + 1)
    match fields.text("encoder_attention_type", "local"):
        case "local":
            return near
        case "transient-global":
            size = fields.integer("global_block_size", 16, most=LONGEST_CONTEXT)
            far = replace(bias, stored=f"{first}.global_relative_attention_bias")
            return replace(near, block_sums=BlockSumsSpec(size, far))
        case told:
            raise ConfigError(f"encoder_attention_type is {told!r}, expected 'local' or 'transient-global'")


def _dense(fields: Fields) -> MLPSpec:
    """The network of layers of Switch Transformers without experts."""
    activation = fields.one_of("dense_act_fn", ACTIVATIONS, "relu")
    return MLPSpec(fields.integer("d_ff", 2048), activation, False, ("mlp.wi",), "mlp.wo", gated=False)


def _sparse(fields: Fields, layers: Sequence[LayerSpec], mlp: MLPSpec, side: str) -> Iterator[LayerSpec]:
    """The layers of a side, of which every so manieth has experts. Those of the encoder take so many tokens of a text;
    to those of the decoder tokens come one by one. Raises :class:`ConfigError`."""
    count = fields.integer(f"num_sparse_{side}_layers", 3, least=0)
    every = len(layers) // count if count else len(layers)
    activation = mlp.activation
    if activation not in ("relu", "gelu", "gelu_tanh", "silu"):
        raise ConfigError(f"dense_act_fn is {activation!r}, and experts take 'relu', 'silu' or 'gelu' alone")
    capacity = fields.integer("expert_capacity", 64) if side == "encoder" else 0
    router = RouterSpec(1, renormalize=False)
    moe = MoESpec(
        fields.integer("num_experts", 8, most=MOST_EXPERTS),
        mlp.inner,
        router,
        activation,
        gated=False,
        router_bias=fields.flag("router_bias"),
        capacity=capacity,
        names=(_EXPERTS,),
    )
    for number, layer in enumerate(layers):
        chosen = every == 1 or (every > 1 and number % every == 1)
        yield replace(layer, mlp=moe) if chosen else layer


def _mlp(fields: Fields, default: str) -> MLPSpec:
    told = fields.text("feed_forward_proj", default)
    gate, _, activation = told.rpartition("-")
    activation = "gelu_new" if told == "gated-gelu" else activation
    if gate not in ("", "gated") or activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ConfigError(f"feed_forward_proj is {told!r}, expected one of {known}, alone or as gated-…")
    into = ("mlp.wi_0", "mlp.wi_1") if gate else ("mlp.wi",)
    return MLPSpec(fields.integer("d_ff", 2048), ACTIVATIONS[activation], False, into, "mlp.wo", gated=bool(gate))
