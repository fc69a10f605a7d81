"""A folder with ``config.json`` of ``model_type: dia``, as transformers saves it, is a checkpoint of Dia.

It speaks in the voices of recordings with transcripts, and in one of its own, different for each sentence.
"""

from pathlib import Path
from typing import Final

import msgspec

from stentor.protocols.ipc.speech import VoicePlace

from ...loading.companions import companion_folder, require_voice_codec
from .form import Form, Recordings, Voices, model_type_of, read_json

DEFAULT_VOICE: Final = "default"


class _Codec(msgspec.Struct):
    sampling_rate: int = 16_000


def _read(folder: Path) -> Voices | None:
    if model_type_of(folder) != "dia":
        return None
    codec = read_json(companion_folder(require_voice_codec(folder), folder) / "config.json", _Codec)
    return Voices("dia", (VoicePlace(DEFAULT_VOICE, str(folder)),), codec.sampling_rate, any_speed=False)


DIA: Final = Form("a checkpoint of Dia (config.json with model_type dia)", _read, Recordings(transcripts=True))
