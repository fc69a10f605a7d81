"""A folder with ``config.json`` of ``model_type: pocket_tts``, as transformers saves it, is a checkpoint of Pocket TTS.

Its voices are files in ``voices/``: ``NAME.safetensors`` with the latents of a recording, or the recording,
``NAME.wav``.
"""

from pathlib import Path
from typing import Final

import msgspec

from stentor.protocols.ipc.speech import VoicePlace

from ...loading.companions import companion_folder, voice_codec
from ...loading.errors import CheckpointError
from .form import Form, Voices, model_type_of, read_json

_PROMPTS: Final = (".safetensors", ".wav")
_FILES: Final = ("model.safetensors", "processor_config.json")


class _Codec(msgspec.Struct):
    sampling_rate: int = 24_000


def _read(folder: Path) -> Voices | None:
    if model_type_of(folder) != "pocket_tts":
        return None
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(f"{folder} is a checkpoint of Pocket TTS without {' and '.join(missing)}: fetch it again")
    named = voice_codec(folder)
    if named is None:
        raise CheckpointError(
            f"{folder / 'processor_config.json'} names no codec (audio_tokenizer_name_or_path): fetch it again"
        )
    codec = read_json(companion_folder(named, folder) / "config.json", _Codec)
    prompts = {
        file.stem: file for file in sorted((folder / "voices").glob("*"), reverse=True) if file.suffix in _PROMPTS
    }
    if not prompts:
        raise CheckpointError(
            f"{folder} holds no voice: expected voices/NAME.safetensors with the latents of a recording, or a "
            "recording (voices/NAME.wav, 16 bits, one channel)"
        )
    places = tuple(VoicePlace(name, str(folder), style=str(file)) for name, file in sorted(prompts.items()))
    return Voices("pocket", places, codec.sampling_rate, any_speed=False)


POCKET: Final = Form("a checkpoint of Pocket TTS (config.json with model_type pocket_tts, voices/)", _read)
