"""Entries of several tokens each: which tokens complete them, what they are made of, and their places in a cache."""

from typing import NamedTuple

import msgspec
import torch

from ..elementwise import elementwise
from .token_history import TokenHistory


class EntryBlocks(msgspec.Struct, frozen=True):
    """Entry e of a row is made of tokens up to position (e + 1) · ratio - 1, in whose block it lies, so that a block
    has all entries that its tokens complete."""

    tables: torch.Tensor
    """int32 [rows, blocks]"""
    block: int
    """Tokens of a block."""
    ratio: int

    @property
    def per_block(self) -> int:
        """Places for entries in a block."""
        return -(-self.block // self.ratio)

    def slots(self, rows: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
        """Places of ``entries``, int64 of any shape that begins with [n], of the rows [n]; an entry that a row has no
        block for has the place of one that it has.

        Returns int64 as ``entries``, indices into a cache [blocks · per_block, ...].
        """
        last = entries * self.ratio + (self.ratio - 1)
        at = (last // self.block).clamp(0, self.tables.shape[1] - 1)
        blocks = self.tables[rows.view(-1, *(1,) * (entries.dim() - 1)), at].long()
        return blocks.clamp(min=0) * self.per_block + last % self.block // self.ratio


class PassTokens(NamedTuple):
    """Where each token of a pass stands."""

    rows: torch.Tensor
    """int64 [tokens]"""
    offsets: torch.Tensor
    """int64 [tokens]: among the tokens of its row in the pass."""
    positions: torch.Tensor
    """int64 [tokens]"""

    @classmethod
    def of(cls, starts: torch.Tensor, positions: torch.Tensor) -> "PassTokens":
        """Those of a pass. ``starts``: int32 [rows + 1], see :class:`kernels.StateRows`; ``positions``: int64
        [tokens]."""
        starts, number = starts.long(), torch.arange(len(positions), device=positions.device)
        at = torch.searchsorted(starts[1:].contiguous(), number, right=True).clamp(max=len(starts) - 2)
        return cls(at, number - starts[at], positions)


class CompletedEntries(NamedTuple):
    """The entries that tokens of a pass complete; on a device, among others that none completes."""

    rows: torch.Tensor
    """int64 [n]"""
    numbers: torch.Tensor
    """int64 [n]: within its row; -1: it is none."""
    first: torch.Tensor
    """int64 [n]: the position of its first token."""
    inputs: torch.Tensor
    """[n, depth, channels]: of its last tokens."""

    def write_(self, entries: torch.Tensor, cache: torch.Tensor, blocks: EntryBlocks) -> None:
        """Write ``entries`` [n, size] to ``cache`` [blocks, places, size]. One that is none repeats the write of
        another one, or rewrites what the cache holds."""
        places = blocks.slots(self.rows, self.numbers.clamp(min=0))
        flat, real = cache.view(-1, cache.shape[2]), self.numbers >= 0
        some, at = real.max(0)
        place = places.index_select(0, at[None])
        same = torch.where(some, entries.index_select(0, at[None]), flat.index_select(0, place))
        flat.index_copy_(0, torch.where(real, places, place), torch.where(real[:, None], entries.to(flat.dtype), same))


def completed(inputs: TokenHistory, tokens: PassTokens, ratio: int, depth: int) -> CompletedEntries | None:
    """The entries of ``ratio`` tokens, made of the inputs of the last ``depth``; None if there are none."""
    completes = (tokens.positions + 1) % ratio == 0
    if inputs.x.device.type == "cpu":
        last = completes.nonzero()[:, 0]
        if not len(last):
            return None
        real = completes[last]
    else:
        # a row of n tokens completes at most n / ratio + 1
        last, real = first_of(completes, min(len(completes), len(completes) // ratio + len(inputs.rows)))
    rows, positions = tokens.rows[last], tokens.positions[last]
    return CompletedEntries(
        rows,
        torch.where(real, positions // ratio, -1),
        (positions // ratio * ratio).contiguous(),
        inputs.until(rows, tokens.offsets[last], depth),
    )


def first_of(flags: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers of up to ``most`` set flags, bool [n], of which there are no more: int64 [most], and which of these
    are real. Nothing is read from a device."""
    at = torch.where(flags, flags.cumsum(0) - 1, most).clamp(max=most)
    numbers = torch.arange(len(flags), device=flags.device)
    found = numbers.new_zeros(most + 1).scatter_(0, at, numbers)[:most]
    return found, torch.arange(most, device=flags.device) < flags.sum()


def gated_sums(vectors: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    """The sums over tokens of ``vectors`` with a softmax of ``gates`` for each dimension, float32 [n, depth, size] each
    → [n, size]. They are added in one order, however many entries there are."""
    raised = elementwise(torch.exp, gates - gates.amax(1, keepdim=True))
    total, summed = raised[:, 0], vectors[:, 0] * raised[:, 0]
    for at in range(1, vectors.shape[1]):
        total = total + raised[:, at]
        summed = summed + vectors[:, at] * raised[:, at]
    return summed / total
