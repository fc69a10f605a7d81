"""Finds the voices in a folder, and their backend. Only descriptions are read.

A Piper voice is ``NAME.onnx`` with ``NAME.onnx.json`` beside it; a folder may hold several. A folder with
``config.json`` of ``model_type: vits``, ``model.safetensors`` and ``vocab.json`` is a checkpoint of transformers'
``VitsModel``.
"""

import importlib.util
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from stentor.protocols.ipc.speech import SpeechBackend, VoicePlace

from ..loading.errors import CheckpointError

DEFAULT_VITS_VOICE: Final = "default"
INSTALL_PIPER: Final = (
    "install the extra `speech` (pip install 'stentor[speech]', which brings piper-tts, under the GPL)"
)


T = TypeVar("T")


class Voices(NamedTuple):
    backend: SpeechBackend
    places: tuple[VoicePlace, ...]
    """Not empty; the first is the default."""
    sample_rate: int


class _PiperAudio(msgspec.Struct):
    sample_rate: int


class _PiperFile(msgspec.Struct):
    audio: _PiperAudio
    num_speakers: int = 1
    speaker_id_map: dict[str, int] = {}


class _VitsConfig(msgspec.Struct):
    model_type: str = ""
    sampling_rate: int = 16_000
    num_speakers: int = 1


class _VitsTokenizer(msgspec.Struct):
    phonemize: bool = True
    is_uroman: bool = False
    language: str | None = None


def read_voices(path: Path) -> Voices:
    """The voices of a folder or of one ``.onnx`` file. Raises :class:`CheckpointError`."""
    if path.suffix == ".onnx" and path.is_file():
        return _piper([path])
    if files := _piper_files(path):
        return _piper(files)
    if _is_vits(path):
        return _vits(path)
    raise CheckpointError(
        f"{path} holds no voice: expected a Piper voice (NAME.onnx with NAME.onnx.json) or a VITS checkpoint "
        "(config.json with model_type vits, model.safetensors, vocab.json)"
    )


def _piper_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*.onnx") if _description(file).is_file())


def _description(file: Path) -> Path:
    return file.with_name(f"{file.name}.json")


def _piper(files: list[Path]) -> Voices:
    if importlib.util.find_spec("piper") is None:
        raise CheckpointError(f"{files[0].name} is a Piper voice, and piper-tts is not installed: {INSTALL_PIPER}")
    places: list[VoicePlace] = []
    rates: dict[int, Path] = {}
    for file in files:
        described = _read(_description(file), _PiperFile)
        rates[described.audio.sample_rate] = file
        if described.num_speakers <= 1:
            places.append(VoicePlace(file.stem, str(file)))
            continue
        names = described.speaker_id_map or {str(number): number for number in range(described.num_speakers)}
        for name, speaker in sorted(names.items(), key=lambda entry: entry[1]):
            places.append(VoicePlace(f"{file.stem}-{name}", str(file), speaker))
    if len(rates) > 1:
        found = ", ".join(f"{file.name} has {rate} Hz" for rate, file in sorted(rates.items()))
        raise CheckpointError(f"the voices in {files[0].parent} differ in their sample rate ({found}): name one file")
    return Voices("piper", tuple(places), next(iter(rates)))


def _is_vits(folder: Path) -> bool:
    config = folder / "config.json"
    return config.is_file() and _read(config, _VitsConfig).model_type == "vits"


def _vits(folder: Path) -> Voices:
    missing = [name for name in ("model.safetensors", "vocab.json") if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(f"{folder} is a VITS checkpoint without {' and '.join(missing)}: fetch it again")
    file = folder / "tokenizer_config.json"
    tokenizer = _read(file, _VitsTokenizer) if file.is_file() else _VitsTokenizer()
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
    config = _read(folder / "config.json", _VitsConfig)
    if config.num_speakers <= 1:
        places = [VoicePlace(DEFAULT_VITS_VOICE, str(folder))]
    else:
        places = [VoicePlace(f"speaker-{number}", str(folder), number) for number in range(config.num_speakers)]
    return Voices("vits", tuple(places), config.sampling_rate)


def _read(file: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
