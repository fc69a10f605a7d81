"""Finds the projector file (llama.cpp's ``mmproj``) of a GGUF text model, and checks that they fit."""

from pathlib import Path

import msgspec

from ...model_config.config_fields import ConfigError
from ...model_config.gguf.mmproj_config import described_by, is_native, seeing, tower_spec
from ...model_config.gguf.mmproj_file import ProjectorFile, TextFile
from ...model_config.spec.model import ModelSpec
from ...model_config.towers.media_spec import tapped_layers
from ...model_config.towers.vision_spec import VisionSpec
from ...quantization.formats import Format, GGUFFormat, QuantizedCheckpoint
from ..errors import CheckpointError
from .file import GGUFFile
from .mmproj_modules import ModuleParts
from .mmproj_names import by_preference, is_mmproj
from .mmproj_tensors import TowerParts, is_changed
from .tensors import check_tensors
from .types import FLOATS


class PairedModel(msgspec.Struct, frozen=True):
    """A text model with its media encoder."""

    spec: ModelSpec
    described: dict[str, object]
    """The equivalent config.json of both."""
    tower: VisionSpec | ModuleParts
    """A vision tower's spec, or the file's names for the parts of transformers' modules."""
    file: Path
    nbytes: int
    quantized: QuantizedCheckpoint | None
    """Formats of the tower's weights, by its own names; None if all are plain."""


def beside(model: Path) -> list[Path]:
    """The projector files in a model's folder, best first."""
    names = {file.name: file for file in model.parent.glob("*.gguf") if file != model and is_mmproj(file.name)}
    return [names[name] for name in by_preference(names)]


def pair(model: GGUFFile, spec: ModelSpec, file: Path) -> PairedModel:
    """Pair a text model with the tower in ``file``. Raises :class:`CheckpointError` if they do not fit."""
    with GGUFFile(file) as opened:
        check_tensors(opened)
        shapes = {name: tensor.shape for name, tensor in opened.tensors.items()}
        projecting = ProjectorFile(opened.metadata, shapes)
        try:
            described = described_by(projecting, TextFile(model.metadata, spec))
            tower = tower_spec(projecting, described, spec.hidden_size) if is_native(described) else None
            seen = seeing(spec, model.metadata, described)
        except ConfigError as error:
            raise CheckpointError(f"{file} is no projector of {model.path.name}: {error}.") from error
        nbytes = sum(tensor.nbytes for tensor in opened.tensors.values())
        if tower is None:
            modules = ModuleParts(str(described["model_type"]), tuple(tapped_layers(described)))
            return PairedModel(seen, described, modules, file, nbytes, None)
        parts = TowerParts(tower, swapped=projecting.swapped)
        stored = {parts.of(name).name: tensor.type for name, tensor in opened.tensors.items() if len(tensor.shape) == 2}
        formats: dict[str, Format] = {
            name.removesuffix(".weight"): GGUFFormat(kind.name)
            for name, kind in stored.items()
            if kind not in FLOATS and not is_changed(tower, name)
        }
        quantized = QuantizedCheckpoint("gguf", parts=formats) if formats else None
        return PairedModel(seen, described, tower, file, nbytes, quantized)
