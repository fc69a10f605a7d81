"""The part of a split model that one worker has: its layers, and how its tensors are cut. Torch-free."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..model_spec import Backbone
from .cuts import Cut


@dataclass(frozen=True)
class RankPart:
    whole: Backbone
    spec: Backbone
    """What it computes, as of a model of its own."""
    cuts: Mapping[str, Cut]
    """By the names that layers have for tensors, where these are plain; the others are taken whole."""
    stored: Mapping[str, Cut]
    """The same as they are stored; of GGUF files, where blocks come expanded."""
    blocks: Mapping[str, Cut]
    """Of blocks of GGUF files that come as they are stored."""
    left_out: frozenset[str] = frozenset()
    """Names, without endings, of what it takes nothing of."""
    stage_ends: Mapping[int, int] = field(default_factory=dict)
    """The last layer of each worker, with its number, if workers have different layers."""

    def leaves_out(self, name: str) -> bool:
        """Whether it takes nothing of a stored tensor."""
        while name := name.rpartition(".")[0]:
            if name in self.left_out:
                return True
        return False

    def cut_of(self, name: str, *, raw: bool) -> Cut | None:
        """The cut of a stored tensor; None: it is read whole. ``raw``: it is read as blocks, not as expanded values."""
        return self.blocks[name] if raw and name in self.blocks else self.stored.get(name)
