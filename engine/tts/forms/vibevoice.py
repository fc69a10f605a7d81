"""A folder with ``config.json`` of ``model_type: vibevoice``, as transformers saves it, is a checkpoint of VibeVoice.

It speaks in the voices of recordings, and in one of its own, different for each sentence.
"""

from pathlib import Path
from typing import Final

import msgspec

from stentor.protocols.ipc.speech import VoicePlace

from ...loading.errors import CheckpointError
from .form import Form, Recordings, Voices, model_type_of, read_json

DEFAULT_VOICE: Final = "default"
_PROCESSORS: Final = ("preprocessor_config.json", "processor_config.json")


class _Extractor(msgspec.Struct):
    sampling_rate: int = 24_000


class _Processor(msgspec.Struct):
    sampling_rate: int | None = None
    feature_extractor: _Extractor | None = None


def _read(folder: Path) -> Voices | None:
    if model_type_of(folder) != "vibevoice":
        return None
    found = [read_json(file, _Processor) for name in _PROCESSORS if (file := folder / name).is_file()]
    if not found:
        raise CheckpointError(
            f"{folder} is a checkpoint of VibeVoice without {' or '.join(_PROCESSORS)}: fetch it again"
        )
    rates = [each.sampling_rate or (each.feature_extractor or _Extractor()).sampling_rate for each in found]
    return Voices("vibevoice", (VoicePlace(DEFAULT_VOICE, str(folder)),), rates[0], any_speed=False)


VIBEVOICE: Final = Form("a checkpoint of VibeVoice (config.json with model_type vibevoice)", _read, Recordings())
