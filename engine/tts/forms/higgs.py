"""A folder with ``config.json`` of ``model_type: higgs_audio_v2``, as transformers saves it, is a checkpoint of Higgs
Audio V2.

It speaks in the voices of recordings with transcripts, and in one of its own, different for each sentence.
"""

from pathlib import Path
from typing import Final

import msgspec

from stentor.protocols.ipc.speech import VoicePlace

from ...loading.companions import companion_folder, require_voice_codec
from .dia import DEFAULT_VOICE
from .form import Form, Recordings, Voices, model_type_of, read_json


class _Codec(msgspec.Struct):
    sample_rate: int = 24_000


def _read(folder: Path) -> Voices | None:
    if model_type_of(folder) != "higgs_audio_v2":
        return None
    codec = read_json(companion_folder(require_voice_codec(folder), folder) / "config.json", _Codec)
    return Voices("higgs", (VoicePlace(DEFAULT_VOICE, str(folder)),), codec.sample_rate, any_speed=False)


HIGGS: Final = Form(
    "a checkpoint of Higgs Audio V2 (config.json with model_type higgs_audio_v2)", _read, Recordings(transcripts=True)
)
