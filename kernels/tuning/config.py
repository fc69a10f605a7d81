"""One way to compile a kernel."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Config:
    """Block sizes and compiler options of a launch: ``Config.of(num_warps=4, num_stages=3, BLOCK_M=64)``."""

    blocks: tuple[tuple[str, int], ...]
    num_warps: int = 4
    num_stages: int = 2
    fuse_multiply_add: bool = True
    """False where a result must be that of separately rounded operations."""

    @classmethod
    def of(cls, *, num_warps: int = 4, num_stages: int = 2, fuse_multiply_add: bool = True, **blocks: int) -> "Config":
        return cls(tuple(sorted(blocks.items())), num_warps, num_stages, fuse_multiply_add)

    @property
    def sizes(self) -> dict[str, int]:
        return dict(self.blocks)

    @property
    def options(self) -> dict[str, Any]:
        """What the compiler is told beside the sizes."""
        return {
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            "enable_fp_fusion": self.fuse_multiply_add,
        }

    def __getitem__(self, block: str) -> int:
        return self.sizes[block]

    def to_json(self) -> dict[str, int]:
        return {**self.sizes, "num_warps": self.num_warps, "num_stages": self.num_stages}

    def replaced(self, entry: Mapping[str, int]) -> "Config":
        """This config with the numbers of a file's entry. Raises ValueError unless it names the same sizes."""
        given = dict(entry)
        warps, stages = given.pop("num_warps", self.num_warps), given.pop("num_stages", self.num_stages)
        if given.keys() != self.sizes.keys():
            raise ValueError(f"expected sizes {sorted(self.sizes)}, found {sorted(given)}")
        return Config(tuple(sorted(given.items())), warps, stages, self.fuse_multiply_add)
