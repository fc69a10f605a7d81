"""The text part of models that see images too: their config.json holds that of a decoder, and their checkpoints hold
its tensors below a prefix, beside others that are left out."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from . import hf_dense, hf_gemma4, hf_hybrid, hf_llama4, hf_variants
from .config_fields import ConfigError, Fields
from .model_spec import ModelSpec

_READERS: Final[Mapping[str, Callable[[Fields, str], ModelSpec]]] = {
    "mistral": hf_dense.mistral,
    "ministral3": hf_variants.ministral3,
    "gemma3_text": hf_dense.gemma3,
    "qwen3_5_text": hf_hybrid.qwen3_5,
    "gemma4_text": hf_gemma4.gemma4,
    "llama4_text": hf_llama4.llama4,
    "qwen3_5_moe_text": hf_hybrid.qwen3_5_moe,
}
"""By the model type of the text part."""
_GEMMA3: Final[Mapping[str, object]] = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
}
"""What transformers' class says, and published files of Gemma 3 leave out."""
_PREFIXES: Final = (
    ("language_model.lm_head.", "lm_head."),
    ("language_model.", ""),
    ("model.language_model.", "model."),
)
"""As published, and as transformers calls them since."""


def gemma3(fields: Fields, name: str) -> ModelSpec:
    return _text(fields, name, "gemma3_text", _GEMMA3)


def mistral3(fields: Fields, name: str) -> ModelSpec:
    return _text(fields, name, "mistral", {})


def qwen3_5(fields: Fields, name: str) -> ModelSpec:
    return _text(fields, name, "qwen3_5_text", {})


def gemma4(fields: Fields, name: str) -> ModelSpec:
    return _text(fields, name, "gemma4_text", {})


def llama4(fields: Fields, name: str) -> ModelSpec:
    return _text(fields, name, "llama4_text", {})


def _text(fields: Fields, name: str, kind: str, defaults: Mapping[str, object]) -> ModelSpec:
    """``kind`` is the model type of a text part that names none. What ends a text, and whether the head is tied, the
    whole model's file may say."""
    text = fields.table("text_config")
    if text is None:
        raise ConfigError("text_config is missing, expected a table")
    kind = Fields(text).text("model_type", kind)
    if kind not in _READERS:
        raise ConfigError(f"text_config.model_type is {kind!r}, expected one of {', '.join(_READERS)}")
    whole = ("bos_token_id", "eos_token_id", "tie_word_embeddings")
    above = {key: fields.values[key] for key in whole if fields.has(key)}
    spec = _READERS[kind](Fields({**defaults, **text, **above}), name)
    return replace(spec, text_part=True)


def text_name(stored: str) -> str | None:
    """The name that a tensor has in a model of text alone; None for one of another part."""
    for prefix, own in _PREFIXES:
        if stored.startswith(prefix):
            return own + stored.removeprefix(prefix)
    return stored if stored.startswith("lm_head.") else None
