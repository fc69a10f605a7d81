"""Reads the config.json of a decoder that transformers' own modelling code runs: whatever transformers ships, and
nothing that a checkpoint brings along.

The description is transformers' configuration class, which knows the defaults of its architecture; it is imported only
for a model that is read here. What layers really ask of attention is found by running them once
(:mod:`..models.transformers_modules`), before weights are loaded.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from .attention_spec import AttentionSpec
from .config_fields import ConfigError, Fields
from .mlp_spec import OpaqueSpec
from .model_spec import LayerSpec, ModelSpec, checked

_ATTENDING: Final = frozenset({"full_attention", "sliding_attention"})
_FOREIGN: Final = ("auto_map", "transformers_version", "_name_or_path")
"""Fields of a config.json that say where code is fetched, or nothing of the model."""


@dataclass(frozen=True, kw_only=True)
class TransformersSpec(ModelSpec):
    """A decoder whose layers are transformers' modules: known by what they keep of tokens."""


def configuration(config: Mapping[str, object]) -> Any:
    """transformers' configuration of the model that a config.json describes. Raises :class:`ConfigError`."""
    from transformers import CONFIG_MAPPING  # late: it brings torch

    kind = Fields(config).text("model_type", "")
    if kind not in CONFIG_MAPPING:
        raise ConfigError(f"its model type {kind!r} is none that transformers ships; code in checkpoints is never run")
    fields = {name: value for name, value in config.items() if name not in _FOREIGN}
    try:
        return CONFIG_MAPPING[kind].from_dict(fields)
    except Exception as error:  # classes check their fields in many ways
        raise ConfigError(f"transformers cannot read its config.json: {first_line(error)}") from error


def class_name(config: Mapping[str, object]) -> str:
    """Of the class that draws tokens for a config.json. Raises :class:`ConfigError` where there is none in
    transformers."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES  # late: it brings torch

    fields = Fields(config)
    kind, named = fields.text("model_type", ""), fields.texts("architectures")
    drawing = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind, ())
    known = (drawing,) if isinstance(drawing, str) else tuple(drawing)
    if not known:
        raise ConfigError(f"transformers has no decoder of model type {kind!r}; code in checkpoints is never run")
    found = known[0] if named is None else next((name for name in named if name in known), None)
    if found is None:
        raise ConfigError(
            f"its architecture {', '.join(named or ())} is no decoder in transformers, expected {' or '.join(known)}"
        )
    return found


def transformers_spec(config: Mapping[str, object]) -> TransformersSpec:
    """What a config.json says of a decoder. Raises :class:`ConfigError` for what cannot run over a paged cache, as far
    as its description tells."""
    made = configuration(config)
    if getattr(made, "is_encoder_decoder", False):
        raise ConfigError("it is an encoder-decoder, which transformers' modules do not run here")
    name = class_name(config)
    if getattr(made, "quantization_config", None):
        raise ConfigError("its weights are quantised, which transformers' modules do not read here: use plain weights")
    if _biased_by_distance(made):
        raise ConfigError(f"{name} adds a bias to scores by distance (ALiBi), which the paged kernels do not have")
    if getattr(made, "add_cross_attention", False):
        raise ConfigError(f"{name} has cross-attention, which transformers' modules do not run here")
    if not getattr(made, "is_causal", True) or (getattr(made, "is_decoder", None) is False and _is_encoder(made)):
        raise ConfigError(f"{name} sees tokens behind the current one, expected a causal decoder")
    layers, hidden = _size(made, "num_hidden_layers"), _size(made, "hidden_size")
    types = list(getattr(made, "layer_types", None) or ["full_attention"] * layers)
    if other := sorted({str(each) for each in types} - _ATTENDING):
        what = ", ".join(each.replace("_", " ") for each in other)
        raise ConfigError(
            f"{name} has layers of {what}, expected layers that attend to all tokens before or to a window of them: "
            "transformers' modules keep no recurrent state here"
        )
    if getattr(made, "num_attention_heads", None) is None:
        raise ConfigError(f"{name} has no attention heads, expected a decoder whose every layer attends")
    heads = _size(made, "num_attention_heads")
    position = getattr(made, "max_position_embeddings", None) or getattr(made, "max_seq_len", None)
    if not isinstance(position, int):
        raise ConfigError(f"{name} names no longest context: max_position_embeddings is missing")
    kv_heads, dim = _kv_heads(made, heads), _size(made, "head_dim", hidden // heads)
    window = getattr(made, "sliding_window", None) or 0
    sliding = getattr(made, "layer_types", None) is None or "sliding_attention" in types
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
        )
    )


def first_line(error: Exception) -> str:
    """Of what another library says."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(".")[:200]


def _typed(made: Any) -> bool:
    return getattr(made, "layer_types", None) is not None


def _is_encoder(made: Any) -> bool:
    """Of BERT's kind, whose class for drawing tokens is causal only as a decoder."""
    return hasattr(made, "is_decoder") and hasattr(made, "type_vocab_size")


def _biased_by_distance(made: Any) -> bool:
    """Bloom is always; others are by their configuration."""
    within = getattr(made, "attn_config", None)
    return made.model_type == "bloom" or bool(getattr(made, "alibi", False) or getattr(within, "alibi", False))


def _kv_heads(made: Any, heads: int) -> int:
    if getattr(made, "num_key_value_heads", None):
        return _size(made, "num_key_value_heads")
    if getattr(made, "new_decoder_architecture", False):
        return _size(made, "num_kv_heads")
    return 1 if getattr(made, "multi_query", False) else heads


def _size(made: Any, name: str, default: int | None = None) -> int:
    value = getattr(made, name, None)
    return Fields({name: value}).integer(name, default)
