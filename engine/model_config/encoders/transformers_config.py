"""Reads the config.json of encoders that run transformers' modelling code, text by text; also of translation models'
encoders.

Their poolers and heads are described by :mod:`...loading.pooling_checkpoint`, as for other backbones.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ..config_fields import ConfigError, Fields
from ..spec.model import Backbone, checked
from ..transformers_config import configuration

_UNNAMED_LENGTH = 512
"""Default length of a text: T5's training length."""
_SCORED_AT_END = tuple(
    f"{family}ForSequenceClassification"
    for family in ("Bart", "BigBirdPegasus", "MBart", "MT5", "Mvp", "PLBart", "T5", "UMT5")
)
"""Classifiers that score the last ``eos_token_id`` of a text, which their decoder reads too."""


class TransformersEncoder(Backbone, frozen=True, kw_only=True, eq=False):
    """Described by the size of its hidden states; its layers are unknown."""

    module: str
    """transformers' class, with a scoring head if the checkpoint has one."""
    token_types: int = 0
    """Number of token types (first text, second text); 0: none."""
    scored_token: int | None = None
    """The token of a text that a classifier scores; None: any text has a score."""
    described: Mapping[str, object]
    """The config.json, which has no hash: these are compared by identity."""


def transformers_encoder(config: Mapping[str, object], *, masked: bool = False) -> TransformersEncoder:
    """The encoder's description; ``masked``: with its masked-language head.

    Raises :class:`ConfigError` if no transformers class makes hidden states.
    """
    made = configuration(config)
    name = _class_name(config, masked=masked)
    if getattr(made, "quantization_config", None):
        raise ConfigError("its weights are quantised, which transformers' modules do not read here: use plain weights")
    fields = Fields(config)
    named = fields.texts("architectures")
    return checked(
        TransformersEncoder(
            architecture=(named[0] if named else name)[:80],
            module=name,
            vocab_size=_size(made, "vocab_size"),
            hidden_size=_size(made, "hidden_size"),
            layers=(),
            max_position=_longest(made, name),
            norm_eps=0.0,
            token_types=getattr(made, "type_vocab_size", 0) or 0,
            scored_token=_scored_token(made, name),
            described=config,
        )
    )


def _class_name(config: Mapping[str, object], *, masked: bool) -> str:
    """The class with the head of ``architectures``, a masked-language head only if ``masked``, or one without a
    head."""
    import transformers
    from transformers.models.auto import modeling_auto as auto  # late: it imports torch

    fields = Fields(config)
    kind, named = fields.text("model_type", ""), fields.texts("architectures") or ()
    if named and not any(hasattr(transformers, name) for name in named):
        raise ConfigError(
            f"architectures names {named[0][:60]!r}, a class that transformers does not have; code in checkpoints is "
            "never run"
        )
    heads = [
        auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
        auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    ]
    if masked:
        heads.append(auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    scoring = {name for mapping in heads for name in _names(mapping.get(kind))}
    found = next((name for name in named if name in scoring), None)
    if found is not None:
        return found
    bare = _names(auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES.get(kind)) or _names(auto.MODEL_MAPPING_NAMES.get(kind))
    if not bare:
        raise ConfigError(f"transformers has no encoder of model type {kind!r}; code in checkpoints is never run")
    return bare[0]


def _names(listed: str | Sequence[str] | None) -> tuple[str, ...]:
    return () if listed is None else (listed,) if isinstance(listed, str) else tuple(listed)


def _size(made: Any, name: str) -> int:
    return Fields({name: getattr(made, name, None)}).integer(name)


def _scored_token(made: Any, name: str) -> int | None:
    if name not in _SCORED_AT_END:
        return None
    if not isinstance(token := made.eos_token_id, int):
        raise ConfigError(f"eos_token_id is {str(token)[:40]}, expected the number of the token that {name} scores")
    return token


def _longest(made: Any, name: str) -> int:
    """Most tokens of a text. RoBERTa's positions begin behind that of padding, whose rows are in the table."""
    import transformers

    given = getattr(made, "max_position_embeddings", None) or getattr(made, "n_positions", None)
    if not isinstance(given, int) or given < 1:
        return _UNNAMED_LENGTH
    module = sys.modules[getattr(transformers, name).__module__]
    counts = any(hasattr(each, "create_position_ids_from_input_ids") for each in vars(module).values())
    return given - (made.pad_token_id or 0) - 1 if counts else given
