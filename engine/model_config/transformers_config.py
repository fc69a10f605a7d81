"""Reads the config.json of decoders that run transformers' modelling code: any that transformers ships, but no code
from a checkpoint.

The description is transformers' configuration class, which has the architecture's defaults; it is imported only for
such models. The attention of layers is found by running them once (:mod:`..models.transformers.modules`), before
weights are loaded.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from .config_fields import ConfigError, Fields
from .spec.attention import AttentionSpec
from .spec.layer import LayerSpec
from .spec.mlp import OpaqueSpec
from .spec.model import ModelSpec, checked

_ATTENDING: Final = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
_FOREIGN: Final = ("auto_map", "transformers_version", "_name_or_path")
"""Fields of a config.json that name code to fetch, or do not describe the model."""


_UNNAMED_LENGTHS: Final[Mapping[str, int]] = {"bloom": 2048}
"""Training length by model type, for models without a context length, which have no last position."""


class KeptKeys(msgspec.Struct, frozen=True):
    """The cache of a layer that attends by its own code."""

    layer: int
    """The number of its module."""
    key_dim: int
    value_dim: int


class TransformersSpec(ModelSpec, frozen=True, kw_only=True):
    """A decoder with transformers' modules as layers, described by their cache."""

    rows: tuple[KeptKeys, ...] = ()
    """For each of ``layers``, if modules attend by their own code, row by row. Empty: all rows run together, with a
    given attention function."""
    takes_media: bool = False
    """In transformers; here only its text is served."""


def configuration(config: Mapping[str, object]) -> Any:
    """transformers' configuration for a config.json. Raises :class:`ConfigError`."""
    from transformers import CONFIG_MAPPING  # late: it imports torch

    kind = Fields(config).text("model_type", "")
    if kind not in CONFIG_MAPPING:
        raise ConfigError(f"its model type {kind!r} is none that transformers ships; code in checkpoints is never run")
    fields = {name: _with_floats(value) for name, value in config.items() if name not in _FOREIGN}
    try:
        return CONFIG_MAPPING[kind].from_dict(fields)
    except Exception as error:  # classes validate in many ways
        raise ConfigError(f"transformers cannot read its config.json: {first_line(error)}") from error


def _with_floats(value: object) -> object:
    """A value of JSON as transformers reads it: numbers that JSON lacks are stored as ``{"__float__": "Infinity"}``."""
    match value:
        case {"__float__": str(number)}:
            return float(number)
        case Mapping():
            return {name: _with_floats(each) for name, each in value.items()}
        case list():
            return [_with_floats(each) for each in value]
    return value


class GeneratingClass(NamedTuple):
    """A generating class of transformers."""

    name: str
    takes_media: bool


def drawing_class(config: Mapping[str, object]) -> GeneratingClass:
    """The class for a config.json. Raises :class:`ConfigError` if transformers has none."""
    from transformers.models.auto import modeling_auto as auto  # late: it imports torch

    fields = Fields(config)
    kind, named = fields.text("model_type", ""), fields.texts("architectures")
    of_text = _names(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind))
    seeing = _names(auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(kind))
    known = tuple(dict.fromkeys((*of_text, *seeing)))
    if not known and any(kind in names for names in (auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES, *_hearing(auto))):
        raise ConfigError(
            f"of model type {kind!r} transformers has a class that hears, of which only decoders of text run here: "
            "transcribe with such as Whisper, Voxtral or Qwen3-ASR"
        )
    if not known:
        raise ConfigError(f"transformers has no decoder of model type {kind!r}; code in checkpoints is never run")
    found = known[0] if named is None else next((name for name in named if name in known), None)
    if found is None:
        raise ConfigError(
            f"its architecture {', '.join(named or ())} is no decoder in transformers, expected {' or '.join(known)}"
        )
    return GeneratingClass(found, found in seeing)


def _hearing(auto: Any) -> tuple[Mapping[str, object], ...]:
    """transformers' classes from sounds to text, by model type."""
    return auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES, auto.MODEL_FOR_CTC_MAPPING_NAMES


def _names(listed: str | Sequence[str] | None) -> tuple[str, ...]:
    return () if listed is None else (listed,) if isinstance(listed, str) else tuple(listed)


def transformers_spec(config: Mapping[str, object]) -> TransformersSpec:
    """The spec of a decoder. Raises :class:`ConfigError` for models that cannot use a paged cache, as far as the
    description tells."""
    whole = configuration(config)
    if getattr(whole, "is_encoder_decoder", False):
        raise ConfigError("it is an encoder-decoder, which transformers' modules do not run here")
    name, takes_media = drawing_class(config)
    made = whole.get_text_config(decoder=True)
    _check_decoder(made, name)
    layers, hidden, heads = (
        _size(made, field) for field in ("num_hidden_layers", "hidden_size", "num_attention_heads")
    )
    types = list(getattr(made, "layer_types", None) or ["full_attention"] * layers)
    position = _longest_context(made, name)
    kv_heads, dim = _kv_heads(made, heads), _size(made, "head_dim", hidden // heads)
    window = _shared_field(made, "sliding_window") or 0
    sliding = not _typed(made) or "sliding_attention" in types
    windows = [window if sliding and (each != "full_attention" or not _typed(made)) else 0 for each in types]
    fields = Fields(config)
    return checked(
        TransformersSpec(
            architecture=name,
            vocab_size=_size(made, "vocab_size"),
            hidden_size=hidden,
            layers=tuple(
                LayerSpec(
                    AttentionSpec(
                        heads=heads,
                        kv_heads=kv_heads,
                        head_dim=dim,
                        scale=dim**-0.5,
                        rope=None,
                        window=each if each < position else 0,
                    ),
                    OpaqueSpec(),
                )
                for each in windows
            ),
            max_position=position,
            norm_eps=0.0,
            tie_embeddings=bool(getattr(made, "tie_word_embeddings", False)),
            bos_token_id=next(iter(fields.token_ids("bos_token_id")), None),
            eos_token_ids=tuple(fields.token_ids("eos_token_id")),
            takes_media=takes_media,
        )
    )


def _check_decoder(made: Any, name: str) -> None:
    """Raises :class:`ConfigError` unless this is a causal decoder whose layers keep keys and values alone."""
    if getattr(made, "quantization_config", None):
        raise ConfigError("its weights are quantised, which transformers' modules do not read here: use plain weights")
    if getattr(made, "add_cross_attention", False):
        raise ConfigError(f"{name} has cross-attention, which transformers' modules do not run here")
    if not getattr(made, "is_causal", True) or (getattr(made, "is_decoder", None) is False and _is_encoder(made)):
        raise ConfigError(f"{name} sees tokens behind the current one, expected a causal decoder")
    if getattr(made, "prefix_lm", False):
        raise ConfigError(
            f"{name} reads prompts in both directions (prefix_lm), expected a causal decoder: with prefix_lm false in "
            "its config.json it is served as one, which its training does not cover"
        )
    types = getattr(made, "layer_types", None) or ()
    if other := sorted({str(each) for each in types} - _ATTENDING):
        what = ", ".join(each.replace("_", " ") for each in other)
        raise ConfigError(
            f"{name} has layers of {what}, expected layers that attend to all tokens before or to a window of them: "
            "transformers' modules keep nothing but keys and values here"
        )
    if _shared_field(made, "num_attention_heads") is None:
        raise ConfigError(f"{name} has no attention heads, expected a decoder whose every layer attends")


def _longest_context(made: Any, name: str) -> int:
    lengths = (getattr(made, field, None) for field in ("max_position_embeddings", "max_seq_len", "seq_length"))
    position = next((length for length in lengths if length), _UNNAMED_LENGTHS.get(made.model_type))
    if not isinstance(position, int):
        raise ConfigError(f"{name} names no longest context: max_position_embeddings is missing")
    return position


def first_line(error: Exception) -> str:
    """The first line of another library's message."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(".")[:200]


def _typed(made: Any) -> bool:
    return getattr(made, "layer_types", None) is not None


def _is_encoder(made: Any) -> bool:
    """Whether it is like BERT, whose generating class is causal only as a decoder."""
    return hasattr(made, "type_vocab_size") or made.model_type == "bert-generation"


def _kv_heads(made: Any, heads: int) -> int:
    if _shared_field(made, "num_key_value_heads"):
        return _size(made, "num_key_value_heads")
    if getattr(made, "new_decoder_architecture", False):
        return _size(made, "num_kv_heads")
    return 1 if getattr(made, "multi_query", False) else heads


def _size(made: Any, name: str, default: int | None = None) -> int:
    return Fields({name: _shared_field(made, name)}).integer(name, default)


def _shared_field(made: Any, name: str) -> Any:
    """A field that is the same for all layers; None if missing, which a probe of the layers finds."""
    try:
        return getattr(made, name, None)
    except Exception:  # transformers' error for a field that differs between layers
        return None
