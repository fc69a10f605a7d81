"""Qwen3-ASR and Qwen3-ForcedAligner: the config.json of published files as transformers writes it."""

from collections.abc import Mapping
from typing import Final

from ..config_fields import ConfigError, Fields

MODEL_TYPE: Final = "qwen3_asr"
TRANSCRIBER: Final = "Qwen3ASRForConditionalGeneration"
ALIGNER: Final = "Qwen3ASRForTokenClassification"
"""transformers' architecture of the forced aligner."""
_ALIGNERS: Final = (ALIGNER, "Qwen3ASRForcedAlignerForTokenClassification")
"""And vLLM's."""
PUBLISHED_HEAD: Final = "classify_num"
"""The field with the number of classes, which only published files have: their head is named as one of tokens."""
_AUDIO: Final = {
    "encoder_layers": 32,
    "encoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "d_model": 1280,
    "n_window": 100,
    "n_window_infer": 400,
}
"""Defaults of published files."""
_TEXT: Final = {"tie_word_embeddings": False, "rope_theta": 5_000_000.0, "rms_norm_eps": 1e-6}
"""Likewise."""
_SHARED: Final = ("audio_token_id", "timestamp_token_id", "timestamp_segment_time", "pad_token_id", PUBLISHED_HEAD)


def is_aligner(config: Mapping[str, object]) -> bool:
    """Whether a config.json describes the forced aligner, by its architecture or as a kind of thinker."""
    if config.get("model_type") != MODEL_TYPE:
        return False
    named, inner = config.get("architectures"), config.get("thinker_config")
    by_name = isinstance(named, list) and any(name in _ALIGNERS for name in named)
    return by_name or (isinstance(inner, Mapping) and "forced_aligner" in str(inner.get("model_type")))


def in_transformers_form(config: Mapping[str, object]) -> Mapping[str, object]:
    """The config.json under transformers' names; other models' as it is. Raises :class:`..config_fields.ConfigError`.

    A published file describes a thinker, whose kind says whether it aligns. All axes of its positions are one: a sound
    has one position after the other, as text has.
    """
    if config.get("model_type") != MODEL_TYPE:
        return config
    aligns = is_aligner(config)
    inner = config.get("thinker_config")
    if not isinstance(inner, Mapping):
        return {**config, "architectures": [ALIGNER]} if aligns else config
    found = {name: told[name] for name in _SHARED for told in (config, inner) if told.get(name) is not None}
    audio, text = ({**defaults, **_table(inner, part)} for part, defaults in (("audio", _AUDIO), ("text", _TEXT)))
    positions = 2 * Fields(audio).integer("n_window")
    for _ in range(3):  # convolutions of step 2
        positions = (positions + 1) // 2
    text["rope_scaling"] = _unturned(Fields(text).table("rope_scaling"))
    found |= {
        "model_type": MODEL_TYPE,
        "architectures": [ALIGNER if aligns else TRANSCRIBER],
        "audio_config": {**audio, "model_type": "qwen3_asr_encoder", "max_position_embeddings": positions},
        "text_config": {**text, "model_type": "qwen3"},
        "tie_word_embeddings": text["tie_word_embeddings"],
    }
    if aligns:
        found["num_labels"] = Fields(found).integer(PUBLISHED_HEAD)
    return found


def _unturned(rope: Mapping[str, object] | None) -> Mapping[str, object] | None:
    """Scaling of positions without their axes."""
    found = {name: value for name, value in (rope or {}).items() if "mrope" not in name and name != "interleaved"}
    return found or None


def _table(inner: Mapping[str, object], part: str) -> Mapping[str, object]:
    found = Fields(inner).table(f"{part}_config")
    if found is None:
        raise ConfigError(f"{part}_config of thinker_config is missing, expected a table")
    return found
