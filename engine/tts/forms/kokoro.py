"""Kokoro as an ONNX graph, with a style for each voice: ``voices/NAME.bin`` beside it or beside its folder (as in
onnx-community's repositories), or all in ``voices-v1.0.bin`` or another ``voices….bin`` or ``.npz`` (kokoro-onnx).

The first letter of a voice's name is its language: a American, b British English; others are left out.
"""

import zipfile
from pathlib import Path
from typing import Final

from stentor.protocols.ipc.speech import English, VoicePlace

from ...loading.errors import CheckpointError
from ...loading.voice_files import KOKORO_TYPE, ONNX, USUAL_GRAPH, is_described, is_hibari, style_files
from ..english import require_english
from .form import Form, Voices, model_type_of

SAMPLE_RATE: Final = 24_000
_LANGUAGES: Final[dict[str, English]] = {"a": "en-us", "b": "en-gb"}
_DEFAULTS: Final = ("af_heart", "af")
"""The makers' default voices; else the first in the order of letters."""


def _read(path: Path) -> Voices | None:
    if path.is_file():
        near = (path.parent, path.parent.parent)
        styled = next((folder for folder in near if style_files(folder)), None)
        if path.suffix != ONNX or is_described(path) or styled is None:
            return None
        return _voices(path, style_files(styled))
    styles = style_files(path)
    graphs = [file for file in sorted([*path.glob(f"*{ONNX}"), *path.glob(f"onnx/*{ONNX}")]) if not is_described(file)]
    if model_type_of(path) == KOKORO_TYPE and not (styles and graphs):
        raise CheckpointError(
            f"{path} is Kokoro without {'a graph (onnx/model.onnx)' if styles else 'styles (voices/NAME.bin)'}: "
            "fetch it again"
        )
    if not styles or not graphs or is_hibari(path):
        return None
    graph = next((file for file in graphs if len(graphs) == 1 or file == path / USUAL_GRAPH), None)
    if graph is None:
        names = ", ".join(str(file.relative_to(path)) for file in graphs)
        raise CheckpointError(f"{path} holds several graphs: {names}; serve one of them by its path")
    return _voices(graph, styles)


def _voices(graph: Path, files: list[Path]) -> Voices:
    found = {name: file for file in files for name in _names(file)}
    places = [
        VoicePlace(name, str(graph), style=str(file), language=_LANGUAGES[name[0]])
        for name, file in sorted(found.items(), key=lambda entry: (entry[0] not in _DEFAULTS, entry[0]))
        if name[:1] in _LANGUAGES
    ]
    if not places:
        raise CheckpointError(
            f"the voices of {graph} are {', '.join(found) or 'none'}, and text is read as English only: expected names "
            "that begin with a (American) or b (British)"
        )
    require_english(places[0].name)
    return Voices("kokoro", tuple(places), SAMPLE_RATE)


def _names(file: Path) -> list[str]:
    if not zipfile.is_zipfile(file):
        return [file.stem]
    with zipfile.ZipFile(file) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


KOKORO: Final = Form("Kokoro (a graph, NAME.onnx, with voices/NAME.bin or voices-v1.0.bin)", _read)
