"""Reads T5Gemma (arXiv:2504.06225): two Gemma 2, of which the decoder also attends to the encoder."""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..hf.dense import gemma2
from ..spec.layer import Norms
from ..spec.model import ModelSpec, with_layers, with_mixers
from ..spec.seq2seq import EMBEDDING
from .text import Rename, Stack, TextToTextConfig, decoder_start_of, eos_of, never_of

ARCHITECTURE: Final = "T5GemmaForConditionalGeneration"
MODEL_TYPE: Final = "t5gemma"
_SIDE: Final[Mapping[str, object]] = {
    **{"vocab_size": 256_000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26},
    **{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192},
    **{"bos_token_id": 2, "eos_token_id": 1},
}
"""Defaults of an encoder's and a decoder's fields."""
NORMS: Final = Norms(
    mixer_in="pre_self_attn_layernorm",
    mixer_out="post_self_attn_layernorm",
    mlp_in="pre_feedforward_layernorm",
    mlp_out="post_feedforward_layernorm",
)
"""Without those of cross-attention."""
HEAD: Final = Rename(r"lm_head\.out_proj(?=\.)", "lm_head")


def t5gemma_config_from_hf(config: Mapping[str, object], generation: Mapping[str, object]) -> TextToTextConfig:
    """Read a config.json and a generation_config.json, which may be empty.

    Raises :class:`ConfigError` for a missing or wrong field.
    """
    fields = Fields(config)
    told = {side: {**_SIDE, **(fields.table(side) or {})} for side in ("encoder", "decoder")}
    encoder, decoder = (_gemma(Fields(told[side]), side) for side in ("encoder", "decoder"))
    if encoder.vocab_size != decoder.vocab_size:
        raise ConfigError(
            f"encoder.vocab_size is {encoder.vocab_size}, expected that of the decoder, {decoder.vocab_size}"
        )
    # transformers' windows of encoders exclude the token itself
    slides = [bool(layer.attention.window) for layer in encoder.layers]
    window = max(layer.attention.window for layer in encoder.layers)
    encoder = with_mixers(encoder, slides, window=window + 1)
    attention = decoder.layers[0].attention
    cross = replace(attention, name="cross_attn", rope=None, window=0, encoded=encoder.hidden_size)
    norms = replace(NORMS, cross_in="pre_cross_attn_layernorm", cross_out="post_cross_attn_layernorm")
    decoder = with_layers(decoder, cross=cross, norms=norms)
    said, words = {**bos_and_eos(told["decoder"]), **config}, "model.encoder.embed_tokens"
    made = join_stacks(ARCHITECTURE, encoder, decoder, said, generation, words=words)
    return replace(made, renames=(HEAD,)).check()


def join_stacks(
    architecture: str,
    encoder: ModelSpec,
    decoder: ModelSpec,
    config: Mapping[str, object],
    generation: Mapping[str, object],
    *,
    words: str = EMBEDDING,
) -> TextToTextConfig:
    """Two Gemmas as one model, not checked. ``words``: name of the encoder's embeddings."""
    return TextToTextConfig(
        architecture=architecture,
        vocab_size=decoder.vocab_size,
        hidden_size=decoder.hidden_size,
        source_positions=encoder.max_position,
        num_layers=len(decoder.layers),
        num_heads=decoder.layers[0].attention.heads,
        max_position=decoder.max_position,
        eos_token_ids=eos_of(config, generation),
        encoder_stack=Stack(encoder, encoder.input, "model.encoder.norm", words),
        decoder_stack=Stack(decoder, decoder.input, "model.decoder.norm"),
        decoder_start=decoder_start_of(config, generation),
        never=never_of(config, generation),
        logits_softcap=decoder.logits_softcap,
        head="" if Fields(config).flag("tie_word_embeddings", True) else "lm_head",
    )


def bos_and_eos(side: Mapping[str, object]) -> dict[str, object]:
    """Those of a side, for a config without its own."""
    return {name: side[name] for name in ("bos_token_id", "eos_token_id")}


def _gemma(fields: Fields, side: str) -> ModelSpec:
    """One side. Raises :class:`ConfigError`."""
    spec = with_layers(gemma2(fields, ARCHITECTURE), norms=NORMS)
    return replace(spec, prefix=f"model.{side}.layers", embedding=f"model.{side}.embed_tokens")
