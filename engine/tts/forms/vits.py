"""A folder with ``config.json`` of ``model_type: vits``, ``model.safetensors`` and ``vocab.json`` is a checkpoint of
transformers' ``VitsModel``."""

from pathlib import Path
from typing import Final

import msgspec

from stentor.protocols.ipc.speech import VoicePlace

from ...loading.errors import CheckpointError
from .form import Form, Voices, model_type_of, read_json

DEFAULT_VOICE: Final = "default"


class _Config(msgspec.Struct):
    sampling_rate: int = 16_000
    num_speakers: int = 1


class _Tokenizer(msgspec.Struct):
    phonemize: bool = True
    is_uroman: bool = False
    language: str | None = None


def _read(folder: Path) -> Voices | None:
    if model_type_of(folder) != "vits":
        return None
    missing = [name for name in ("model.safetensors", "vocab.json") if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(f"{folder} is a VITS checkpoint without {' and '.join(missing)}: fetch it again")
    file = folder / "tokenizer_config.json"
    tokenizer = read_json(file, _Tokenizer) if file.is_file() else _Tokenizer()
    if tokenizer.is_uroman:
        raise CheckpointError(
            f"{folder} speaks a language ({tokenizer.language}) whose text must be romanised with uroman first, which "
            "Stentor does not do: serve a voice whose tokenizer_config.json says is_uroman false"
        )
    if tokenizer.phonemize:
        raise CheckpointError(
            f"{folder} needs phonemes, which only its makers' phonemizer gives: serve a checkpoint that reads letters "
            "(facebook/mms-tts-eng), or a Piper voice"
        )
    config = read_json(folder / "config.json", _Config)
    if config.num_speakers <= 1:
        places = [VoicePlace(DEFAULT_VOICE, str(folder))]
    else:
        places = [VoicePlace(f"speaker-{number}", str(folder), number) for number in range(config.num_speakers)]
    return Voices("vits", tuple(places), config.sampling_rate)


VITS: Final = Form("a VITS checkpoint (config.json with model_type vits, model.safetensors, vocab.json)", _read)
