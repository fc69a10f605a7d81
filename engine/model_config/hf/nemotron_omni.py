"""Nemotron 3 Nano Omni: the config.json of published files as transformers writes it."""

from collections.abc import Mapping
from typing import Final

PUBLISHED: Final = "NemotronH_Nano_Omni_Reasoning_V3"
"""Architecture and model type of published files."""
CLASS: Final = "NemotronH_Omni_Reasoning_V3"
"""transformers' architecture."""
ARCHITECTURES: Final = (CLASS, PUBLISHED)
MODEL_TYPE: Final = "nemotron_h_omni"
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
    if config.get("model_type") not in (PUBLISHED, MODEL_TYPE):
        return config
    found = {_NAMES.get(name, name): value for name, value in config.items() if value is not None}
    found |= {"model_type": MODEL_TYPE, "architectures": [CLASS], "video_token_id": found.get("image_token_id")}
    sounds = found.get("audio_config")
    if isinstance(sounds, Mapping):  # published files name a type that transformers does not have
        found["audio_config"] = {name: value for name, value in sounds.items() if name != "model_type"}
    else:
        found.pop("audio_token_id", None)
    return found
