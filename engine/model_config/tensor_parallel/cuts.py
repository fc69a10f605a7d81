"""Cuts of stored tensors for one rank, and the division of heads and channels among ranks. Torch-free.

The other modules of this folder use these to split a model's layers; :mod:`stentor.engine.loading.stored_cuts` applies
the cuts while weights are read.
"""

from collections.abc import Callable, Iterable, Iterator

import msgspec

from ..config_fields import ConfigError
from ..spec.projection import Projection

Ranges = tuple[tuple[int, int], ...]
"""Parts of one dimension, each as (first index, count)."""


class Cut(msgspec.Struct, frozen=True):
    """The part of a stored tensor that one rank reads."""

    dim: int
    """The dimension that is cut."""
    size: int
    """Size of that dimension in the whole tensor."""
    ranges: Ranges
    """What the rank reads of it; empty: nothing, in whatever format the tensor is stored."""
    zero: bool = False
    """The rank uses zeros instead, because another rank adds the stored values."""
    inputs: bool = False
    """Whether the dimension is that of a matrix's inputs."""
    transposed: bool = False
    """Some checkpoints store the last two dimensions the other way round, which shows in the sizes."""
    stacked: bool = False
    """Whether the dimension numbers matrices, which are read whole in any format."""
    scale: bool = False
    """Whether it holds quantisation scales: a single value belongs to every rank, and of four dimensions every second
    has size 1 and does not count."""


Cuts = Iterator[tuple[str, Cut]]
"""Pairs of a stored tensor's name and its cut."""
BlockOf = Callable[[str, bool], int]
"""(name of a stored matrix, whether inputs are cut) → how many inputs, or outputs, are stored in one block of its
quantisation format, which ranks cannot divide."""


class Rank(msgspec.Struct, frozen=True):
    """One of the workers that split a model."""

    number: int
    """Its index, from 0."""
    size: int
    """The number of ranks."""
    whole_experts: bool = False
    """Whether the rank has some whole experts (expert parallelism) instead of a part of each."""

    def each(self, count: int, what: str) -> int:
        """How many of ``count`` the rank has. Raises :class:`ConfigError`, naming ``what``, if they do not divide."""
        if count % self.size:
            raise ConfigError(f"{count} {what} do not divide among {self.size} workers")
        return count // self.size

    def own(self, count: int) -> tuple[int, int]:
        """The rank's equal part of ``count``, as (first, count)."""
        each = count // self.size
        return self.number * each, each

    def blocks(self, count: int, block: int, what: str) -> tuple[int, int]:
        """The rank's part of ``count`` in whole blocks, as (first, count); some ranks, beginning with the first, may
        have one block more. Raises :class:`ConfigError` if there are fewer blocks than ranks."""
        if count % (block * self.size) == 0:
            return self.own(count)
        blocks = -(-count // block)
        if block == 1 or blocks < self.size:
            lie = f" in blocks of {block}" if block > 1 else ""
            raise ConfigError(f"{count} {what}{lie} do not divide among {self.size} workers")
        first, own = self.spread(blocks)
        return first * block, min((first + own) * block, count) - first * block

    def spread(self, count: int) -> tuple[int, int]:
        """The rank's part of a ``count`` that need not divide, as (first, count); some ranks, beginning with the first,
        may have one more."""
        first, end = (-(-number * count // self.size) for number in (self.number, self.number + 1))
        return first, end - first

    def shared(self, count: int, what: str) -> tuple[int, int]:
        """The rank's part of ``count``, as (first, count). If there are fewer than ranks, several ranks have the same
        one, as kv heads. Raises :class:`ConfigError` if neither number divides the other."""
        if count % self.size and self.size % count:
            raise ConfigError(f"{count} {what} do not divide among {self.size} workers")
        return self.own(count) if count >= self.size else (self.number * count // self.size, 1)

    def columns(self, projection: Projection, prefix: str, ranges: Iterable[Ranges]) -> Cuts:
        """Cuts of a projection's outputs: ``ranges`` for each of its parts."""
        own = {f"{prefix}.{name}": each for (name, _), each in zip(projection.parts, ranges, strict=True)}
        for name, shape in projection.shapes(prefix):
            dim = 1 if projection.transposed and len(shape) == 2 else 0
            yield name, Cut(dim, shape[dim], own[name.rpartition(".")[0]])

    def rows(self, projection: Projection, prefix: str, *own: tuple[int, int]) -> Cuts:
        """Cuts of a projection's inputs to the ranges ``own``. The first rank alone adds the bias."""
        dim = 0 if projection.transposed else 1
        for name, shape in projection.shapes(prefix):
            if len(shape) == 2:
                yield name, Cut(dim, shape[dim], own, inputs=True)
            elif self.number:
                yield name, Cut(0, shape[0], ((0, shape[0]),), zero=True)
