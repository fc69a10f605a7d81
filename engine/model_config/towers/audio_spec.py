"""Describes an audio encoder and its projector as values. Torch-free."""

import math
from collections.abc import Iterator

import msgspec

from ..config_fields import ConfigError
from ..spec.model import Backbone
from .vision_spec import ProjectorProduct, ProjectorSpec


class SoundGroups(msgspec.Struct, frozen=True):
    """Positions of all windows are joined to embeddings (FunAudioChat): the mean of each pair is projected, and an
    embedding is a product of the mean of ``size`` of these."""

    size: int
    """The last group is padded with zeros, to the sound's number of embeddings."""
    product: ProjectorProduct
    unit: tuple[str, str] | None = None
    """Names of a table, and of the projection of one of its rows, which is added to each embedding."""
    row: int = 0
    """Index of that row."""

    def shapes(self, inputs: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Shapes of its stored tensors; ``inputs``: outputs of the projector."""
        yield f"{self.product.name}.weight", (self.product.outputs, inputs)
        if self.unit is not None:
            table, product = self.unit
            yield f"{table}.weight", (1, inputs)
            yield f"{product}.weight", (self.product.outputs, inputs)


BATCH_NORM = ("running_mean", "running_var", "weight", "bias")
"""Stored parts of a batch norm."""
PATCH_FRAMES = 4
"""Frames of a position, where it is a product of a patch."""


class AudioSpec(Backbone, frozen=True, kw_only=True):
    """Whisper's encoder (arXiv:2212.04356) over a sound of any length. ``max_position``: positions of a window, of
    :attr:`frames_a_position` each."""

    mel_bins: int
    stack: int = 1
    """Adjacent positions that are joined to one embedding; the last group is padded with zeros, or left out if they are
    :attr:`patched`, where groups go on from window to window."""
    patched: bool = False
    """Whether a position is a product of :data:`PATCH_FRAMES` frames whose bins a batch norm has normed (Dasheng,
    arXiv:2406.06992), instead of what two convolutions make of frames."""
    projector: ProjectorSpec
    learned: bool = True
    """Whether positions are stored; otherwise they are sinusoids."""
    final_norm: str = "layer_norm"
    groups: SoundGroups | None = None

    @property
    def frames_a_position(self) -> int:
        return PATCH_FRAMES if self.patched else 2

    @property
    def joined_size(self) -> int:
        """Inputs of the projector."""
        return self.hidden_size * self.stack

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors of a plain checkpoint, by names in :class:`...models.towers.audio_tower.AudioTower`."""
        hidden = self.hidden_size
        found: dict[str, tuple[int, ...]] = {}
        if self.learned:
            found["embed_positions.weight"] = self.max_position, hidden
        if self.patched:
            found |= {f"init_bn.{part}": (self.mel_bins,) for part in BATCH_NORM}
            found |= {"patch_embed.proj.weight": (hidden, PATCH_FRAMES * self.mel_bins)}
            found |= {"patch_embed.proj.bias": (hidden,), "freq_pos_embed": (hidden,)}
        else:
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
        """Raise :class:`ConfigError` for contradictory fields."""
        if not self.layers:
            raise ConfigError("the encoder of sounds has no layers")
        for layer in dict.fromkeys(self.layers):
            layer.check()
