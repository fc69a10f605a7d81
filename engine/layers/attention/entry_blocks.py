"""The positions of compressed entries, of several tokens each, in a paged cache."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class EntryBlocks:
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
