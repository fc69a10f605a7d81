"""What an encoder of sounds is made of, and what brings its output into the space of a decoder. Torch-free."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from .config_fields import ConfigError
from .model_spec import Backbone
from .vision_spec import ProjectorProduct, ProjectorSpec


@dataclass(frozen=True)
class SoundGroups:
    """Positions of all windows become embeddings together (FunAudioChat): the mean of each pair is projected, and a
    product of the mean of so many of these is one."""

    size: int
    """The last are filled up with zeros, to as many embeddings as the sound has."""
    product: ProjectorProduct
    unit: tuple[str, str] | None = None
    """The names of a table, and of a product of one row of it, which is added to each embedding."""
    row: int = 0
    """Which row that is."""

    def shapes(self, inputs: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Of what is stored; ``inputs``: numbers that the projector makes."""
        yield f"{self.product.name}.weight", (self.product.outputs, inputs)
        if self.unit is not None:
            table, product = self.unit
            yield f"{table}.weight", (1, inputs)
            yield f"{product}.weight", (self.product.outputs, inputs)


@dataclass(frozen=True, kw_only=True)
class AudioSpec(Backbone):
    """Whisper's encoder (arXiv:2212.04356) over as many frames as a sound has; ``max_position`` are the positions of a
    window, two frames each."""

    mel_bins: int
    stack: int = 1
    """Positions beside each other that become one embedding; the last are filled up with zeros."""
    projector: ProjectorSpec
    learned: bool = True
    """Whether positions are stored; if not, they are sinusoids."""
    final_norm: str = "layer_norm"
    groups: SoundGroups | None = None

    @property
    def joined_size(self) -> int:
        """Numbers that are projected."""
        return self.hidden_size * self.stack

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every tensor of a checkpoint of plain weights, by the names that
        :class:`..models.audio_tower.AudioTower` has for them."""
        hidden = self.hidden_size
        found: dict[str, tuple[int, ...]] = {}
        if self.learned:
            found["embed_positions.weight"] = self.max_position, hidden
        for name, inputs in (("conv1", self.mel_bins), ("conv2", hidden)):
            found |= {f"{name}.weight": (hidden, 3 * inputs), f"{name}.bias": (hidden,)}
        for number, layer in enumerate(self.layers):
            found.update(layer.shapes(f"{self.prefix}.{number}", hidden))
        found |= {f"{self.final_norm}.{last}": (hidden,) for last in ("weight", "bias")}
        found.update(self.projector.shapes("", self.joined_size, 1))
        if self.groups is not None:
            found.update(self.groups.shapes(self.projector.products[-1].outputs))
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
