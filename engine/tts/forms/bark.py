"""A folder with ``config.json`` of ``model_type: bark``, as transformers saves it, is a checkpoint of Bark.

Its voices are the presets that ``speaker_embeddings_path.json`` names, of three arrays each, and one of its own.
"""

from pathlib import Path
from typing import Final

import msgspec

from stentor.protocols.ipc.speech import VoicePlace

from ...loading.errors import CheckpointError
from ...loading.voice_files import BARK_PRESETS
from .form import Form, Voices, model_type_of, read_json

DEFAULT_VOICE: Final = "default"
PARTS: Final = ("semantic_prompt", "coarse_prompt", "fine_prompt")
"""Arrays of a preset."""


class _Generation(msgspec.Struct):
    sample_rate: int = 24_000


def preset_files(folder: Path, name: str) -> dict[str, Path]:
    """The files of the preset ``name``, by :data:`PARTS`. Raises :class:`CheckpointError` if they lie elsewhere."""
    told = read_json(folder / BARK_PRESETS, dict[str, dict[str, str] | str])[name]
    assert isinstance(told, dict)
    files = {part: folder / told.get(part, "") for part in PARTS}
    for file in files.values():
        if ".." in file.parts or folder not in file.parents:
            raise CheckpointError(f"{folder / BARK_PRESETS} names {file} for {name}, expected a file within {folder}")
    return files


def _read(folder: Path) -> Voices | None:
    if model_type_of(folder) != "bark":
        return None
    generation = folder / "generation_config.json"
    if not generation.is_file():
        raise CheckpointError(f"{folder} is a checkpoint of Bark without generation_config.json: fetch it again")
    rate = read_json(generation, _Generation).sample_rate
    places = [VoicePlace(DEFAULT_VOICE, str(folder))]
    presets = folder / BARK_PRESETS
    if presets.is_file():
        told = read_json(presets, dict[str, dict[str, str] | str])
        names = (name for name, parts in told.items() if isinstance(parts, dict) and name != DEFAULT_VOICE)
        present = (name for name in names if all(file.is_file() for file in preset_files(folder, name).values()))
        places += [VoicePlace(name, str(folder), style=str(presets)) for name in present]
    return Voices("bark", tuple(places), rate, any_speed=False)


BARK: Final = Form("a checkpoint of Bark (config.json with model_type bark)", _read)
