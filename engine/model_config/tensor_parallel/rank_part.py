"""The part of a split model that one worker has: its layers, and how its tensors are cut. Torch-free."""

from collections.abc import Mapping

import msgspec

from ..spec.model import Backbone
from .cuts import Cut


class RankPart(msgspec.Struct, frozen=True):
    """What one of several workers that split a model computes and reads."""

    whole: Backbone
    spec: Backbone
    """The rank's part of the model, described as a whole model."""
    cuts: Mapping[str, Cut]
    """Cuts by the names that layers use, of plain tensors; others are read whole."""
    stored: Mapping[str, Cut]
    """Cuts by stored names; in GGUF files, of blocks that are read as expanded values."""
    blocks: Mapping[str, Cut]
    """Cuts of blocks of GGUF files that are read as they are stored."""
    left_out: frozenset[str] = frozenset()
    """Names, without endings, of stored tensors that the rank does not read."""
    stage_ends: Mapping[int, int] = msgspec.field(default_factory=dict)
    """The last layer of each worker, with its number, if workers have different layers."""

    def leaves_out(self, name: str) -> bool:
        """Whether the rank does not read a stored tensor."""
        while name := name.rpartition(".")[0]:
            if name in self.left_out:
                return True
        return False

    def cut_of(self, name: str, *, raw: bool) -> Cut | None:
        """The cut of a stored tensor; None: it is read whole. ``raw``: it is read as blocks, not as expanded values."""
        return self.blocks[name] if raw and name in self.blocks else self.stored.get(name)
