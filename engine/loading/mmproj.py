"""The projector file (llama.cpp's ``mmproj``) beside a text model in a GGUF file: found, and held against it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..model_config.config_fields import ConfigError
from ..model_config.mmproj_config import Projecting, TextFile, described_by, seeing, tower_spec
from ..model_config.model_spec import ModelSpec
from ..model_config.vision_spec import VisionSpec
from .errors import CheckpointError
from .gguf_file import GGUFFile
from .gguf_tensors import check_tensors

_ENDING: Final = ".gguf"
_MARK: Final = "mmproj"
_PREFERRED: Final = ("f16", "bf16", "q8_0", "f32")
"""Of several files, which differ in how they store weights: 16 bits first, and never less where there is a choice."""


@dataclass(frozen=True)
class Paired:
    """A text model with what it sees by."""

    spec: ModelSpec
    described: dict[str, object]
    """The config.json that says the same of both."""
    tower: VisionSpec
    file: Path
    nbytes: int


def is_mmproj(name: str) -> bool:
    """Whether a file of this name is one, and no model of its own."""
    last = name.rpartition("/")[2].casefold()
    return last.endswith(_ENDING) and _MARK in last


def by_preference(names: Iterable[str]) -> list[str]:
    """Files that hold the same, the best first."""

    def rank(name: str) -> tuple[int, str]:
        parts = re.split(r"[^a-z0-9_]+", name.rpartition("/")[2].casefold())
        return next((place for place, kind in enumerate(_PREFERRED) if kind in parts), len(_PREFERRED)), name

    return sorted(names, key=rank)


def beside(model: Path) -> list[Path]:
    """The projector files in a model's folder, the best first."""
    names = {file.name: file for file in model.parent.glob(f"*{_ENDING}") if file != model and is_mmproj(file.name)}
    return [names[name] for name in by_preference(names)]


def pair(model: GGUFFile, spec: ModelSpec, file: Path) -> Paired:
    """The text model and the tower in ``file``. Raises :class:`CheckpointError` where they do not belong together."""
    with GGUFFile(file) as opened:
        check_tensors(opened)
        shapes = {name: tensor.shape for name, tensor in opened.tensors.items()}
        projecting = Projecting(opened.metadata, shapes)
        try:
            described = described_by(projecting, TextFile(model.metadata, spec))
            tower = tower_spec(projecting, described, spec.hidden_size)
            seen = seeing(spec, model.metadata, described)
        except ConfigError as error:
            raise CheckpointError(f"{file} is no projector of {model.path.name}: {error}.") from error
        return Paired(seen, described, tower, file, sum(tensor.nbytes for tensor in opened.tensors.values()))
