"""A Piper voice is ``NAME.onnx`` with ``NAME.onnx.json`` beside it; a folder may hold several."""

import importlib.util
from pathlib import Path
from typing import Final

import msgspec

from stentor.protocols.ipc.speech import VoicePlace

from ...loading.errors import CheckpointError
from ...loading.voice_files import ONNX, description, is_described
from .form import Form, Voices, read_json

_INSTALL: Final = "install the extra `speech` (pip install 'stentor[speech]', which brings piper-tts, under the GPL)"


class _Audio(msgspec.Struct):
    sample_rate: int


class _File(msgspec.Struct):
    audio: _Audio
    num_speakers: int = 1
    speaker_id_map: dict[str, int] = {}


def _read(path: Path) -> Voices | None:
    if path.suffix == ONNX:
        return _voices([path]) if path.is_file() else None
    files = sorted(file for file in path.glob(f"*{ONNX}") if is_described(file))
    return _voices(files) if files else None


def _voices(files: list[Path]) -> Voices:
    if importlib.util.find_spec("piper") is None:
        raise CheckpointError(f"{files[0].name} is a Piper voice, and piper-tts is not installed: {_INSTALL}")
    places: list[VoicePlace] = []
    rates: dict[int, Path] = {}
    for file in files:
        described = read_json(description(file), _File)
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


PIPER: Final = Form("a Piper voice (NAME.onnx with NAME.onnx.json)", _read)
