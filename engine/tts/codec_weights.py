"""The tensors of a codec's decoder, and samples as the speech process sends them."""

from pathlib import Path
from typing import Final

import torch

from ..loading.weight_files import weight_index
from ..loading.weights import tensors_from

_PEAK: Final = 32767.0
_NORMED: Final = (
    (".parametrizations.weight.original0", ".parametrizations.weight.original1"),
    (".weight_g", ".weight_v"),
)
"""Ends of the names of a weight's length and direction, in torch's two forms."""


class CodecWeights:
    """Tensors by name, in float32."""

    def __init__(self, folder: Path, prefixes: tuple[str, ...]) -> None:
        """Read those whose names begin so. Raises :class:`..loading.errors.CheckpointError`."""
        self.tensors: Final = {
            name: tensor.float()
            for file in dict.fromkeys(stored.file for stored in weight_index(folder))
            for name, tensor in tensors_from(file)
            if name.startswith(prefixes)
        }
        self._fold()

    def named(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def normed(self, name: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weight and bias of a layer, whose weight may be stored as its length and its direction."""
        return self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias")

    def _fold(self) -> None:
        """Replaces lengths and directions by the weights that they make."""
        for length, direction in _NORMED:
            for name in [name for name in self.tensors if name.endswith(length)]:
                layer = name.removesuffix(length)
                stored = self.tensors.pop(name), self.tensors.pop(f"{layer}{direction}")
                self.tensors[f"{layer}.weight"] = torch._weight_norm(stored[1], stored[0], 0)


def pcm_of(samples: torch.Tensor) -> bytes:
    """Samples within [-1, 1] as signed 16 bits."""
    scaled = (samples * _PEAK).clamp(-_PEAK, _PEAK).to(torch.int16)
    return bytes(scaled.contiguous().view(torch.uint8).numpy().tobytes())
