"""A folder with ``config.json`` of ``model_type: seamless_m4t`` or ``seamless_m4t_v2``, as transformers saves it, is a
checkpoint of SeamlessM4T.

Its voices are the languages that it speaks, of ``generation_config.json``, by the names there.
"""

from pathlib import Path
from typing import Final

import msgspec

from stentor.protocols.ipc.speech import VoicePlace

from ...loading.errors import CheckpointError
from ...model_config.seq2seq.seamless import MODEL_TYPES
from .form import Form, Voices, model_type_of, read_json

_FIRST: Final = "eng"
"""The default, where the model speaks it."""


class _Config(msgspec.Struct):
    sampling_rate: int = 16_000


class _Generation(msgspec.Struct):
    text_decoder_lang_to_code_id: dict[str, int] = {}
    t2u_lang_code_to_id: dict[str, int] = {}
    vocoder_lang_code_to_id: dict[str, int] = {}


def _read(folder: Path) -> Voices | None:
    if model_type_of(folder) not in MODEL_TYPES.values():
        return None
    file = folder / "generation_config.json"
    told = read_json(file, _Generation) if file.is_file() else _Generation()
    spoken = (
        told.text_decoder_lang_to_code_id.keys() & told.t2u_lang_code_to_id.keys() & told.vocoder_lang_code_to_id.keys()
    )
    if not spoken:
        raise CheckpointError(f"{folder} is a checkpoint of SeamlessM4T whose generation_config.json names no language")
    names = sorted(spoken, key=lambda name: (name != _FIRST, name))
    places = tuple(VoicePlace(name, str(folder)) for name in names)
    return Voices("seamless", places, read_json(folder / "config.json", _Config).sampling_rate, any_speed=False)


SEAMLESS: Final = Form("a checkpoint of SeamlessM4T (config.json with model_type seamless_m4t_v2)", _read)
