"""Reads SeamlessM4T (arXiv:2308.11596) and its second version (arXiv:2312.05187): the encoder and the decoder of text,
which are those of NLLB."""

from collections.abc import Mapping
from typing import Final, Literal

from ..config_fields import ConfigError, Fields
from .bart import Family, eos_or, layers_of, stack_of
from .text import UNUSED_PART, Rename, Stack, TextToTextConfig, decoder_start_of, never_of

FIRST, SECOND = "SeamlessM4T", "SeamlessM4Tv2"
MODEL_TYPES: Final[Mapping[str, str]] = {FIRST: "seamless_m4t", SECOND: "seamless_m4t_v2"}
"""By the beginning of an architecture's name."""
TEXT_TO_TEXT: Final = tuple(f"{version}ForTextToText" for version in MODEL_TYPES)
_FAMILIES: Final[Mapping[str, Family]] = {
    version: Family(
        kind,
        before=True,
        embedding_norm=False,
        positions="closed",
        vocab=256102,
        layers=(24, 24),
        inner=8192,
        max_position=longest,
        activation="relu",
        scaled=True,
        start=3,
        eos=3,
    )
    for (version, kind), longest in zip(MODEL_TYPES.items(), (1024, 4096), strict=True)
}
_LAYER: Final = r"text_(encoder|decoder)\.layers\.(\d+)\."
TEXT_NAMES: Final = (
    Rename(r"(shared|text_(en|de)coder\.embed_tokens)(?=\.)", "model.decoder.embed_tokens"),
    *(
        Rename(_LAYER + theirs, rf"model.\1.layers.\2.{ours}")
        for theirs, ours in (
            (r"ffn\.fc", "fc"),
            (r"ffn_layer_norm(?=\.)", "final_layer_norm"),
            (r"cross_attention_layer_norm(?=\.)", "encoder_attn_layer_norm"),
            (r"cross_attention(?=\.)", "encoder_attn"),
        )
    ),
    Rename(r"text_(encoder|decoder)(?=\.)", r"model.\1"),
)
"""Of tensors of both stacks."""
_UNUSED: Final = Rename(r"(speech_encoder|t2u_model|vocoder)\..+", UNUSED_PART)


def version_of(name: str) -> str:
    """The beginning of an architecture's name."""
    return SECOND if name.startswith(SECOND) else FIRST


def seamless_stack(name: str, config: Mapping[str, object], side: Literal["encoder", "decoder"], longest: int) -> Stack:
    """One side's stack of the architecture ``name``, with positions for ``longest`` tokens. Raises
    :class:`..config_fields.ConfigError`."""
    family = _FAMILIES[version_of(name)]
    fields = Fields({"pad_token_id": 0, **config})
    if not fields.flag("tie_word_embeddings", True):
        raise ConfigError("tie_word_embeddings is off, expected one embedding for encoder, decoder and head")
    hidden, vocab = fields.integer("hidden_size", family.hidden), fields.integer("vocab_size", family.vocab)
    return stack_of(name, family, side, fields, layers_of(fields, family)[side], hidden, vocab, longest)


def seamless_longest(name: str, config: Mapping[str, object]) -> int:
    """Most tokens of a text."""
    return Fields(config).integer("max_position_embeddings", _FAMILIES[version_of(name)].max_position, most=1 << 20)


def seamless_ends(name: str, config: Mapping[str, object], generation: Mapping[str, object]) -> tuple[int, ...]:
    """The tokens that end an output."""
    return eos_or(_FAMILIES[version_of(name)], config, generation)


def seamless_text_config_from_hf(
    name: str, config: Mapping[str, object], generation: Mapping[str, object]
) -> TextToTextConfig:
    """Read the config.json of the architecture ``name`` and a generation_config.json, which may be empty.

    Raises :class:`..config_fields.ConfigError` for a missing or wrong field.
    """
    longest = seamless_longest(name, config)
    encoder, decoder = (seamless_stack(name, config, side, longest) for side in ("encoder", "decoder"))
    layers = decoder.layers
    return TextToTextConfig(
        architecture=name,
        vocab_size=layers.vocab_size,
        hidden_size=layers.hidden_size,
        source_positions=longest,
        num_layers=len(layers.layers),
        num_heads=layers.layers[0].attention.heads,
        max_position=longest,
        eos_token_ids=seamless_ends(name, config, generation),
        encoder_stack=encoder,
        decoder_stack=decoder,
        decoder_start=decoder_start_of({"decoder_start_token_id": 3, **config}, generation),
        renames=(*TEXT_NAMES, _UNUSED),
        never=never_of(config, generation),
    ).check()
