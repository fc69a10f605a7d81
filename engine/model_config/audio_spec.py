"""What an encoder of sounds is made of, and what brings its output into the space of a decoder. Torch-free."""

import math
from dataclasses import dataclass

from .config_fields import ConfigError
from .model_spec import Backbone
from .vision_spec import ProjectorSpec


@dataclass(frozen=True, kw_only=True)
class AudioSpec(Backbone):
    """Whisper's encoder (arXiv:2212.04356) over as many frames as a sound has; ``max_position`` are the positions that
    are learned, two frames each."""

    mel_bins: int
    stack: int
    """Positions beside each other that become one embedding; the last are filled up with zeros."""
    projector: ProjectorSpec

    @property
    def joined_size(self) -> int:
        """Numbers that are projected."""
        return self.hidden_size * self.stack

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every tensor of a checkpoint of plain weights, by the names that
        :class:`..models.audio_tower.AudioTower` has for them."""
        hidden = self.hidden_size
        found: dict[str, tuple[int, ...]] = {"embed_positions.weight": (self.max_position, hidden)}
        for name, inputs in (("conv1", self.mel_bins), ("conv2", hidden)):
            found |= {f"{name}.weight": (hidden, 3 * inputs), f"{name}.bias": (hidden,)}
        for number, layer in enumerate(self.layers):
            found.update(layer.shapes(f"{self.prefix}.{number}", hidden))
        found |= {f"layer_norm.{last}": (hidden,) for last in ("weight", "bias")}
        found.update(self.projector.shapes("", self.joined_size, 1))
        return found

    @property
    def parameters(self) -> int:
        return sum(map(math.prod, self.shapes().values()))

    def check(self) -> None:
        """Raises :class:`ConfigError` where its parts contradict each other."""
        if not self.layers:
            raise ConfigError("the encoder of sounds has no layers")
        for layer in dict.fromkeys(self.layers):
            layer.check()
