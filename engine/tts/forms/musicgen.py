"""A folder with ``config.json`` of ``model_type: musicgen``, as transformers saves it, is a checkpoint of MusicGen.

It has one voice, which plays what a text describes.
"""

from pathlib import Path
from typing import Final

import msgspec

from stentor.protocols.ipc.speech import VoicePlace

from .form import Form, Voices, model_type_of, read_json

DEFAULT_VOICE: Final = "default"


class _Codec(msgspec.Struct):
    sampling_rate: int = 32_000


class _Config(msgspec.Struct):
    audio_encoder: _Codec = msgspec.field(default_factory=_Codec)


def _read(folder: Path) -> Voices | None:
    if model_type_of(folder) != "musicgen":
        return None
    rate = read_json(folder / "config.json", _Config).audio_encoder.sampling_rate
    return Voices("musicgen", (VoicePlace(DEFAULT_VOICE, str(folder)),), rate, any_speed=False, whole_texts=True)


MUSICGEN: Final = Form("a checkpoint of MusicGen (config.json with model_type musicgen)", _read)
