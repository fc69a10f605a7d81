"""Cuts of stored tensors for one rank, and the division of heads and channels among ranks. Torch-free."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ..config_fields import ConfigError
from ..projection import Projection

Ranges = tuple[tuple[int, int], ...]
"""First and count of each, of one dimension."""


@dataclass(frozen=True)
class Cut:
    """What one rank takes of a stored tensor."""

    dim: int
    size: int
    """Of the dimension, whole."""
    ranges: Ranges
    """Empty: it takes nothing of whatever the part is stored as."""
    zero: bool = False
    """It takes zeros in place: another adds what is stored."""
    inputs: bool = False
    """The dimension is that of a matrix's inputs."""
    transposed: bool = False
    """Some have the last two dimensions the other way round: told by the size."""
    stacked: bool = False
    """The dimension numbers matrices, which are taken whole in any format."""
    scale: bool = False
    """One value is that of all, and taken whole; of one with four dimensions each second is 1, and left out."""


Cuts = Iterator[tuple[str, Cut]]
"""By the names of stored tensors."""
BlockOf = Callable[[str, bool], int]
"""How many inputs, or outputs where it is false, of the stored matrix of this name cannot be told apart."""


@dataclass(frozen=True)
class Rank:
    """One of the workers that split a model."""

    number: int
    size: int
    """How many there are."""
    whole_experts: bool = False
    """Whether it has some experts, in place of a part of each."""

    def each(self, count: int, what: str) -> int:
        """How many of ``count`` are its own. Raises :class:`ConfigError` where they do not divide."""
        if count % self.size:
            raise ConfigError(f"{count} {what} do not divide among {self.size} workers")
        return count // self.size

    def own(self, count: int) -> tuple[int, int]:
        """The first of its part, and how many."""
        each = count // self.size
        return self.number * each, each

    def blocks(self, count: int, block: int, what: str) -> tuple[int, int]:
        """The same of what lies in blocks, which stay whole: some workers, the first among them, may have one more than
        others. Raises :class:`ConfigError` where there are too few."""
        if count % (block * self.size) == 0:
            return self.own(count)
        blocks = -(-count // block)
        if block == 1 or blocks < self.size:
            lie = f" in blocks of {block}" if block > 1 else ""
            raise ConfigError(f"{count} {what}{lie} do not divide among {self.size} workers")
        first, own = self.spread(blocks)
        return first * block, min((first + own) * block, count) - first * block

    def spread(self, count: int) -> tuple[int, int]:
        """The same of what need not divide: some workers, the first among them, may have one more than others."""
        first, end = (-(-number * count // self.size) for number in (self.number, self.number + 1))
        return first, end - first

    def shared(self, count: int, what: str) -> tuple[int, int]:
        """The same of what several workers may have in common, where there are fewer of it. Raises
        :class:`ConfigError` where neither divides the other."""
        if count % self.size and self.size % count:
            raise ConfigError(f"{count} {what} do not divide among {self.size} workers")
        return self.own(count) if count >= self.size else (self.number * count // self.size, 1)

    def columns(self, projection: Projection, prefix: str, ranges: Iterable[Ranges]) -> Cuts:
        """Of some outputs of each part."""
        own = {f"{prefix}.{name}": each for (name, _), each in zip(projection.parts, ranges, strict=True)}
        for name, shape in projection.shapes(prefix):
            dim = 1 if projection.transposed and len(shape) == 2 else 0
            yield name, Cut(dim, shape[dim], own[name.rpartition(".")[0]])

    def rows(self, projection: Projection, prefix: str, *own: tuple[int, int]) -> Cuts:
        """Of some inputs; the first rank adds the bias."""
        dim = 0 if projection.transposed else 1
        for name, shape in projection.shapes(prefix):
            if len(shape) == 2:
                yield name, Cut(dim, shape[dim], own, inputs=True)
            elif self.number:
                yield name, Cut(0, shape[0], ((0, shape[0]),), zero=True)
