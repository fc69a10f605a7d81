"""The configuration of a kernel launch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Config:
    """Block sizes and compiler options of a launch: ``Config.of(num_warps=4, num_stages=3, BLOCK_M=64)``."""

    blocks: tuple[tuple[str, int], ...]
    num_warps: int = 4
    num_stages: int = 2
    fuse_multiply_add: bool = True
    """False if a result must equal that of separately rounded operations."""
    dependent: bool = False
    """Starts while the launch before it ends; see :mod:`..launching.dependent`."""
    sizes: Mapping[str, int] = field(init=False, compare=False, repr=False)
    options: Mapping[str, Any] = field(init=False, compare=False, repr=False)
    """The compiler's options besides the sizes."""
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:  # made once: a launch reads all of these, hundreds of times per step
        options: dict[str, Any] = {
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            "enable_fp_fusion": self.fuse_multiply_add,
        }
        if self.dependent:
            options["launch_pdl"] = True
        object.__setattr__(self, "sizes", MappingProxyType(dict(self.blocks)))
        object.__setattr__(self, "options", MappingProxyType(options))
        object.__setattr__(self, "_hash", hash((self.blocks, *options.values())))

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def of(cls, *, num_warps: int = 4, num_stages: int = 2, fuse_multiply_add: int = True, **blocks: int) -> "Config":
        return _config(num_warps, num_stages, bool(fuse_multiply_add), **blocks)

    def __getitem__(self, block: str) -> int:
        return self.sizes[block]

    def to_json(self) -> dict[str, int]:
        return {**self.sizes, "num_warps": self.num_warps, "num_stages": self.num_stages}

    def replaced(self, entry: Mapping[str, int]) -> "Config":
        """Returns this config with the numbers of a file's entry. Raises ValueError unless it has the same sizes."""
        given = dict(entry)
        warps, stages = given.pop("num_warps", self.num_warps), given.pop("num_stages", self.num_stages)
        if given.keys() != self.sizes.keys():
            raise ValueError(f"expected sizes {sorted(self.sizes)}, found {sorted(given)}")
        return _config(warps, stages, self.fuse_multiply_add, **given)


@cache  # returns the same object each time: dictionaries then compare no field
def _config(num_warps: int, num_stages: int, fuse_multiply_add: bool, **blocks: int) -> Config:
    return Config(tuple(sorted(blocks.items())), num_warps, num_stages, fuse_multiply_add)
