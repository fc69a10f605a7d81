"""The projector file (llama.cpp's ``mmproj``) beside a text model in a GGUF file: found, and held against it."""

from dataclasses import dataclass
from pathlib import Path

from ..model_config.config_fields import ConfigError
from ..model_config.media_spec import tapped_layers
from ..model_config.mmproj_config import described_by, is_native, seeing, tower_spec
from ..model_config.mmproj_file import Projecting, TextFile
from ..model_config.model_spec import ModelSpec
from ..model_config.vision_spec import VisionSpec
from ..quantization.formats import Format, GGUFFormat, QuantizedCheckpoint
from .errors import CheckpointError
from .gguf_file import GGUFFile
from .gguf_tensors import check_tensors
from .gguf_types import FLOATS
from .mmproj_modules import ModuleParts
from .mmproj_names import by_preference, is_mmproj
from .mmproj_tensors import TowerParts, is_changed


@dataclass(frozen=True)
class Paired:
    """A text model with what it sees or hears by."""

    spec: ModelSpec
    described: dict[str, object]
    """The config.json that says the same of both."""
    tower: VisionSpec | ModuleParts
    """What sees, or where it is transformers' modules how the file calls their parts."""
    file: Path
    nbytes: int
    quantized: QuantizedCheckpoint | None
    """How the tower's weights are stored, by its own names of them; None where all are plain."""


def beside(model: Path) -> list[Path]:
    """The projector files in a model's folder, the best first."""
    names = {file.name: file for file in model.parent.glob("*.gguf") if file != model and is_mmproj(file.name)}
    return [names[name] for name in by_preference(names)]


def pair(model: GGUFFile, spec: ModelSpec, file: Path) -> Paired:
    """The text model and the tower in ``file``. Raises :class:`CheckpointError` where they do not belong together."""
    with GGUFFile(file) as opened:
        check_tensors(opened)
        shapes = {name: tensor.shape for name, tensor in opened.tensors.items()}
        projecting = Projecting(opened.metadata, shapes)
        try:
            described = described_by(projecting, TextFile(model.metadata, spec))
            tower = tower_spec(projecting, described, spec.hidden_size) if is_native(described) else None
            seen = seeing(spec, model.metadata, described)
        except ConfigError as error:
            raise CheckpointError(f"{file} is no projector of {model.path.name}: {error}.") from error
        nbytes = sum(tensor.nbytes for tensor in opened.tensors.values())
        if tower is None:
            modules = ModuleParts(str(described["model_type"]), tuple(tapped_layers(described)))
            return Paired(seen, described, modules, file, nbytes, None)
        parts = TowerParts(tower, swapped=projecting.swapped)
        stored = {parts.of(name).name: tensor.type for name, tensor in opened.tensors.items() if len(tensor.shape) == 2}
        formats: dict[str, Format] = {
            name.removesuffix(".weight"): GGUFFormat(kind.name)
            for name, kind in stored.items()
            if kind not in FLOATS and not is_changed(tower, name)
        }
        quantized = QuantizedCheckpoint("gguf", parts=formats) if formats else None
        return Paired(seen, described, tower, file, nbytes, quantized)
