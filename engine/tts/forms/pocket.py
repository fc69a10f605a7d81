"""A folder with ``config.json`` of ``model_type: pocket_tts``, as transformers saves it, is a checkpoint of Pocket TTS.

Its voices are files in ``voices/``: ``NAME.safetensors`` with the latents of a recording, or the recording,
``NAME.wav``.
"""

from pathlib import Path
from typing import Final

import msgspec

from ...loading.companions import companion_folder, require_voice_codec
from ...loading.errors import CheckpointError
from .form import Form, Recordings, Voices, model_type_of, read_json

_FILES: Final = ("model.safetensors", "processor_config.json")


class _Codec(msgspec.Struct):
    sampling_rate: int = 24_000


def _read(folder: Path) -> Voices | None:
    if model_type_of(folder) != "pocket_tts":
        return None
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(f"{folder} is a checkpoint of Pocket TTS without {' and '.join(missing)}: fetch it again")
    codec = read_json(companion_folder(require_voice_codec(folder), folder) / "config.json", _Codec)
    return Voices("pocket", (), codec.sampling_rate, any_speed=False)


POCKET: Final = Form(
    "a checkpoint of Pocket TTS (config.json with model_type pocket_tts, voices/)",
    _read,
    Recordings(others=(".safetensors",)),
)
