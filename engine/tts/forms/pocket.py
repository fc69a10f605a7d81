"""Pocket TTS and Phonon, which has its modules: a folder with their ``config.json``, as transformers saves it.

Their voices are files in ``voices/``: ``NAME.safetensors`` with the latents of a recording, or, for Pocket TTS, the
recording, ``NAME.wav``. Phonon's are latents of a codec that is not published with it.
"""

from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from ...loading.companions import companion_folder, require_voice_codec
from ...loading.errors import CheckpointError
from .form import Form, Recordings, Voices, model_type_of, read_json

_FILES: Final = ("model.safetensors", "processor_config.json")


class _Codec(msgspec.Struct):
    sampling_rate: int = 24_000


def _read(folder: Path, *, kind: str, name: str) -> Voices | None:
    if model_type_of(folder) != kind:
        return None
    missing = [file for file in _FILES if not (folder / file).is_file()]
    if missing:
        raise CheckpointError(f"{folder} is a checkpoint of {name} without {' and '.join(missing)}: fetch it again")
    codec = read_json(companion_folder(require_voice_codec(folder), folder) / "config.json", _Codec)
    return Voices("pocket", (), codec.sampling_rate, any_speed=False)


POCKET: Final = Form(
    "a checkpoint of Pocket TTS (config.json with model_type pocket_tts, voices/)",
    partial(_read, kind="pocket_tts", name="Pocket TTS"),
    Recordings(others=(".safetensors",)),
)
PHONON: Final = Form(
    "a checkpoint of Phonon (config.json with model_type gradium_phonon_tts, voices/)",
    partial(_read, kind="gradium_phonon_tts", name="Phonon"),
    Recordings(sounds=False, others=(".safetensors",)),
)
