"""A folder whose ``config.json`` names ``SpeechT5ForTextToSpeech`` is a checkpoint of SpeechT5.

Its voices are files in ``voices/``: ``NAME.safetensors`` with the x-vector of a speaker.
"""

from pathlib import Path
from typing import Final

import msgspec

from ...loading.companions import companion_folder, require_voice_codec
from ...loading.errors import CheckpointError
from .form import Form, Recordings, Voices, model_type_of, read_json

_ARCHITECTURE: Final = "SpeechT5ForTextToSpeech"
_VOCABULARY: Final = "spm_char.model"


class _Config(msgspec.Struct):
    architectures: list[str] = []


class _Vocoder(msgspec.Struct):
    sampling_rate: int = 16_000


def _read(folder: Path) -> Voices | None:
    if model_type_of(folder) != "speecht5":
        return None
    named = read_json(folder / "config.json", _Config).architectures
    if named != [_ARCHITECTURE]:
        raise CheckpointError(
            f"architectures in {folder / 'config.json'} is {named}: expected {[_ARCHITECTURE]}, the SpeechT5 that "
            "speaks"
        )
    if not (folder / _VOCABULARY).is_file():
        raise CheckpointError(f"{folder} is a checkpoint of SpeechT5 without {_VOCABULARY}: fetch it again")
    vocoder = read_json(companion_folder(require_voice_codec(folder), folder) / "config.json", _Vocoder)
    return Voices("speecht5", (), vocoder.sampling_rate, any_speed=False)


SPEECHT5: Final = Form(
    f"a checkpoint of SpeechT5 (config.json with {_ARCHITECTURE}, voices/)",
    _read,
    Recordings(sounds=False, others=(".safetensors",)),
)
