"""Nemotron 3 Nano and Super Omni: the config.json of published files as transformers writes it."""

from collections.abc import Mapping
from typing import Final

PUBLISHED: Final = ("NemotronH_Nano_Omni_Reasoning_V3", "NemotronH_Super_Omni_Reasoning_V3")
"""Architectures of published files, each also their model type."""
CLASS: Final = "NemotronH_Omni_Reasoning_V3"
"""transformers' architecture."""
MODEL_TYPE: Final = "nemotron_h_omni"
"""transformers' model type."""
MODEL_TYPES: Final[Mapping[str, str]] = {CLASS: MODEL_TYPE, **{name: name for name in PUBLISHED}}
"""By architecture."""
ARCHITECTURES: Final = tuple(MODEL_TYPES)
_NAMES: Final[Mapping[str, str]] = {
    "img_context_token_id": "image_token_id",
    "video_context_token_id": "video_token_id",
    "sound_context_token_id": "audio_token_id",
    "sound_config": "audio_config",
    "vit_hidden_size": "vision_hidden_size",
}
"""Published names of fields, and transformers'."""


def in_transformers_form(config: Mapping[str, object]) -> Mapping[str, object]:
    """The config.json under transformers' names; other models' as it is. Frames of videos stand at the token of
    pictures, whichever token a file names for them."""
    if config.get("model_type") not in MODEL_TYPES.values():
        return config
    found = {_NAMES.get(name, name): value for name, value in config.items() if value is not None}
    found |= {"model_type": MODEL_TYPE, "architectures": [CLASS], "video_token_id": found.get("image_token_id")}
    sounds = found.get("audio_config")
    if isinstance(sounds, Mapping):  # published files name a type that transformers does not have
        found["audio_config"] = {name: value for name, value in sounds.items() if name != "model_type"}
    else:
        found.pop("audio_token_id", None)
    return found
