"""A folder with ``config.json`` of ``model_type: csm``, as transformers saves it, is a checkpoint of CSM.

It speaks in the voices of recordings with transcripts, and in ten of its own, one for each number of a speaker.
"""

from pathlib import Path
from typing import Final

import msgspec

from stentor.protocols.ipc.speech import VoicePlace

from ...loading.errors import CheckpointError
from .form import Form, Recordings, Voices, model_type_of, read_json

_SPEAKERS: Final = 10
"""Numbers of one digit: the prompt writes a number as text, and the published model was tried with these."""


class _Codec(msgspec.Struct):
    sampling_rate: int = 24_000


class _Config(msgspec.Struct):
    codec_config: _Codec = msgspec.field(default_factory=_Codec)


def _read(folder: Path) -> Voices | None:
    if model_type_of(folder) != "csm":
        return None
    missing = [name for name in ("tokenizer.json", "preprocessor_config.json") if not (folder / name).is_file()]
    if missing and not (folder / "processor_config.json").is_file():
        raise CheckpointError(f"{folder} is a checkpoint of CSM without {' and '.join(missing)}: fetch it again")
    config = read_json(folder / "config.json", _Config)
    places = tuple(VoicePlace(str(number), str(folder), number) for number in range(_SPEAKERS))
    return Voices("csm", places, config.codec_config.sampling_rate, any_speed=False)


CSM: Final = Form("a checkpoint of CSM (config.json with model_type csm)", _read, Recordings(transcripts=True))
