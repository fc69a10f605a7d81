"""What a model takes besides text, as its config.json says it: which media, and the tokens that hold their places."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from .thinker import thinker

Modality = Literal["image", "video", "audio"]

_KEYS: Final[Mapping[Modality, tuple[str, ...]]] = {
    "image": ("image_token_id", "image_token_index"),
    "video": ("video_token_id", "video_token_index"),
    "audio": ("audio_token_id", "audio_token_index"),
}


@dataclass(frozen=True)
class MediaSpec:
    """Ids of the placeholder tokens, which embeddings replace."""

    placeholders: Mapping[Modality, int]
    layers: int = 0
    """Behind so many of the first layers of the decoder something is added to the stream of pictures."""
    behind_frames: bool = False
    """Whether what follows a video stands behind its last frame, where tokens turn by frame, row and column."""


def media_spec(config: Mapping[str, object]) -> MediaSpec | None:
    """None for a model of text alone."""
    speaks, config = "thinker_config" in config, thinker(config)
    found: dict[Modality, int] = {}
    for modality, keys in _KEYS.items():
        token = next((config[key] for key in keys if isinstance(config.get(key), int)), None)
        if isinstance(token, int):
            found[modality] = token
    vision = config.get("vision_config")
    taps = vision.get("deepstack_visual_indexes") if isinstance(vision, Mapping) else None
    return MediaSpec(found, len(taps) if isinstance(taps, Sequence) else 0, speaks) if found else None
