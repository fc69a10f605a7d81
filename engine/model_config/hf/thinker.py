"""Models that also generate speech: the config.json of the text model is a part of theirs, as in Qwen3-ASR's
published files."""

from collections.abc import Mapping

from . import qwen3_asr


def thinker(config: Mapping[str, object]) -> Mapping[str, object]:
    """The thinker's config.json: the part of a speaking model that answers in text. ``config`` itself if it has
    none."""
    if config.get("model_type") == qwen3_asr.MODEL_TYPE:
        return qwen3_asr.in_transformers_form(config)
    found = config.get("thinker_config")
    return {**found, "architectures": None} if isinstance(found, Mapping) else config
