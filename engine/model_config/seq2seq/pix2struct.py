"""Reads Pix2Struct (arXiv:2210.03347): an encoder of patches, as many as fit a picture's shape, and T5's decoder."""

from collections.abc import Mapping
from math import isqrt
from typing import Final

from msgspec.structs import replace

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..spec.attention import AttentionSpec
from ..spec.layer import LayerSpec
from ..spec.mlp import MLPSpec
from ..spec.model import Backbone
from ..spec.picture_source import PictureSource, Strided
from ..spec.positions import DistanceBias
from ..spec.seq2seq import EMBEDDING
from ..spec.token_input import TokenInputSpec
from .pictured import PICTURES
from .t5 import ACTIVATIONS, NORMS, POSITIONS
from .text import Rename, Stack, TextToTextConfig, decoder_start_of, eos_of, never_of

PATCHES: Final = "Pix2StructForConditionalGeneration"
PATCHES_TYPE: Final = "pix2struct"
_CHANNELS: Final = 3
_MOST_ROWS: Final = 1 << 16
_LAYERS: Final = "model.decoder.layers"
_RENAMES: Final = tuple(
    Rename(pattern, name)
    for pattern, name in (
        (r"encoder\.", PICTURES),
        (r"decoder\.embed_tokens(?=\.)", EMBEDDING),
        (r"decoder\.lm_head(?=\.)", "lm_head"),
        (r"decoder\.final_layer_norm(?=\.)", "model.decoder.norm"),
        *(
            (rf"decoder\.layer\.(\d+)\.{stored}(?=\.)", rf"{_LAYERS}.\1.{name}")
            for stored, name in (
                (r"self_attention\.layer_norm", "self_norm"),
                (r"encoder_decoder_attention\.layer_norm", "cross_norm"),
                (r"mlp\.layer_norm", "mlp_norm"),
                (r"mlp\.DenseReluDense", "mlp"),
                *(
                    (rf"{part}\.attention\.{each}", f"{own}.{each[0]}_proj")
                    for part, own in (("self_attention", "self_attn"), ("encoder_decoder_attention", "cross"))
                    for each in ("query", "key", "value", "output")
                ),
                (r"self_attention\.attention", "self_attn"),
            )
        ),
    )
)


def patches_config_from_hf(config: Mapping[str, object], generation: Mapping[str, object]) -> TextToTextConfig:
    """Read a config.json and a generation_config.json, which may be empty. Raises :class:`ConfigError` for missing or
    wrong fields."""
    whole = Fields(config)
    text, seen = (Fields(whole.table(f"{part}_config") or {}) for part in ("text", "vision"))
    hidden, heads = text.integer("hidden_size", 768), text.integer("num_heads", 12)
    head_dim, vocab = text.integer("d_kv", 64), text.integer("vocab_size", 50_244)
    if heads * head_dim != hidden:
        raise ConfigError(f"num_heads is {heads} of d_kv {head_dim}, expected {hidden} dimensions, as hidden_size is")
    attention = AttentionSpec(heads, heads, head_dim, 1.0, None)
    bias = DistanceBias(
        f"{_LAYERS}.0.self_attn.relative_attention_bias",
        text.integer("relative_attention_num_buckets", 32),
        text.integer("relative_attention_max_distance", 128),
        both_ways=False,
    )
    activation = text.one_of("dense_act_fn", ACTIVATIONS, "gelu_new")
    mlp = MLPSpec(text.integer("d_ff", 2048), activation, False, ("mlp.wi_0", "mlp.wi_1"), "mlp.wo", gated=True)
    layer = LayerSpec(
        replace(attention, distance_bias=bias),
        mlp,
        replace(NORMS, cross_in="cross_norm"),
        cross=replace(attention, name="cross"),
    )
    count = text.integer("num_layers", 12, most=MOST_LAYERS)
    decoder = Backbone(
        architecture=PATCHES,
        vocab_size=vocab,
        hidden_size=hidden,
        layers=(layer,) * count,
        max_position=POSITIONS,
        norm_eps=text.positive("layer_norm_epsilon", 1e-6),
        prefix=_LAYERS,
    )
    pictures = _source(seen)
    if pictures.size != hidden:
        raise ConfigError(f"hidden_size of vision_config is {pictures.size}, expected the decoder's, {hidden}")
    told = {**text.values, **{name: value for name, value in config.items() if value is not None}}
    return TextToTextConfig(
        architecture=PATCHES,
        vocab_size=vocab,
        hidden_size=hidden,
        source_positions=pictures.states,
        num_layers=count,
        num_heads=heads,
        max_position=POSITIONS,
        eos_token_ids=eos_of(told, generation) or (1,),
        encoder_stack=None,
        decoder_stack=Stack(decoder, TokenInputSpec(), "model.decoder.norm"),
        pictures=pictures,
        decoder_start=decoder_start_of({"decoder_start_token_id": 0, **told}, generation),
        never=never_of(told, generation),
        bounded=False,
        renames=_RENAMES,
        head="" if whole.flag("tie_word_embeddings") else "lm_head",
    ).check()


def _source(seen: Fields) -> PictureSource:
    """Rows and columns of patches count from 1, and each number has a position: a picture has one patch less than
    there are positions, in any shape, of which a line is the largest."""
    flat, positions = seen.integer("patch_embed_hidden_size", 768), seen.integer("seq_len", 4096, least=2)
    side = isqrt(flat // _CHANNELS)
    if _CHANNELS * side * side != flat or positions > _MOST_ROWS:
        raise ConfigError(
            f"patch_embed_hidden_size is {flat} and seq_len {positions}, expected the values of a square of "
            f"{_CHANNELS} channels and at most {_MOST_ROWS}"
        )
    return PictureSource(
        made_by="Pix2StructVisionModel",
        described={"model_type": "pix2struct_vision_model", **seen.values},
        channels=_CHANNELS,
        sides=(side, side * (positions - 1)),
        steps=(Strided(side, side),),
        free=True,
        size=seen.integer("hidden_size", 768),
    )
