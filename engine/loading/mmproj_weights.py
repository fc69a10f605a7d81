"""The weights of a tower from a projector file (llama.cpp's ``mmproj``), as
:class:`..models.vision_tower.VisionTower` names them."""

from collections.abc import Iterator, Set
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from typing import Final

import torch

from ..model_config.mmproj_config import Projecting
from ..model_config.vision_spec import VisionSpec
from .errors import CheckpointError
from .gguf_file import GGUFFile
from .gguf_types import GGMLType
from .gguf_weights import TensorReader
from .mmproj_tensors import IGNORED, SECOND_FRAME, TowerParts

_PATCH: Final = "v.patch_embd.weight"
_HALVES: Final = {GGMLType.F16: torch.float16, GGMLType.BF16: torch.bfloat16}
"""What is kept as it is stored."""


def mmproj_weights(file: Path, spec: VisionSpec, raw: Set[str] = frozenset()) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor), quantised blocks as what they stand for, but for those of ``raw``: these come as stored,
    uint8 [rows, bytes of a row]. Raises :class:`CheckpointError`."""
    with ExitStack() as stack:
        opened = stack.enter_context(GGUFFile(file))
        reader = TensorReader(file, stack.enter_context(FileIO(file)))
        shapes = {name: tensor.shape for name, tensor in opened.tensors.items()}
        parts = TowerParts(spec, swapped=Projecting(opened.metadata, shapes).swapped)
        for name, tensor in opened.tensors.items():
            if name in IGNORED or name == SECOND_FRAME:
                continue
            part = parts.of(name)
            if part.name in raw:
                yield part.name, reader.blocks(tensor, part.heads)
                continue
            dtype = _HALVES.get(tensor.type, torch.float32)
            values = reader.read(tensor, dtype, part.heads, 0.0)
            if name == _PATCH and spec.frames > 1:
                if SECOND_FRAME not in opened.tensors:
                    raise CheckpointError(f"Cannot load {file}: the tensor {SECOND_FRAME} is missing.")
                second = reader.read(opened.tensors[SECOND_FRAME], dtype, 0, 0.0)
                values = torch.stack((values, second), dim=2)  # [hidden, channels, frames, patch, patch]
            yield part.name, values
