"""The last tokens of each row, oldest first: of a recurrent state, or of a cache."""

from typing import Any

import msgspec
import torch

from stentor import kernels


class TokenHistory(msgspec.Struct, frozen=True):
    """One layer's inputs: those of the tokens of a pass, and of the last tokens before it.

    Nothing is read from the device, and a row's numbers are copies: they do not depend on other rows.
    """

    x: torch.Tensor
    """[tokens, channels]"""
    state: torch.Tensor
    """[slots, length, channels]: of the last tokens before the pass; zeros where there were none."""
    rows: kernels.StateRows

    def until(self, rows: torch.Tensor, offsets: torch.Tensor, count: int) -> torch.Tensor:
        """The ``count`` inputs up to and including a token, rounded to the state's dtype.

        Args:
            rows, offsets: int64 [n]: each token's row and its number among the row's tokens of the pass; -1: the last
                token before the pass.
            count: at most the state's length, and 1 more for tokens of the pass.

        Returns:
            [n, count, channels]
        """
        length = self.state.shape[1]
        at = (length + offsets - count + 1)[:, None] + torch.arange(count, device=self.x.device)  # [n, count]
        reads = self.rows.reads[rows]
        before = self.state[reads.clamp(min=0)[:, None], at.clamp(max=length - 1)]
        before = torch.where((reads >= 0)[:, None, None], before, 0.0)
        if not len(self.x):
            return before
        own = (self.rows.cu_seqlens[rows].long()[:, None] + at - length).clamp(0, len(self.x) - 1)
        return torch.where((at < length)[:, :, None], before, self.x[own].to(before.dtype))

    def keep_(self) -> None:
        """Write every row's last inputs to the slot that it writes."""
        rows, writes = self.rows, self.rows.writes
        number = torch.arange(len(rows), device=self.x.device)
        last = self.until(number, rows.cu_seqlens.diff().long() - 1, self.state.shape[1])
        # rows of padding write what one that is none writes; if there is none, what is there already
        slot, row = writes.max(0)
        slot = slot.clamp(min=0)[None]
        same = torch.where(writes.amax() >= 0, last.index_select(0, row[None]), self.state.index_select(0, slot))
        kept = writes >= 0
        self.state.index_copy_(0, torch.where(kept, writes, slot), torch.where(kept[:, None, None], last, same))


class CachedTokens(msgspec.Struct, frozen=True):
    """One layer's vectors of all tokens of a row, in a paged cache that those of the pass are written to already."""

    cache: torch.Tensor
    """[blocks, tokens, channels]"""
    batch: kernels.AttentionBatch

    def until(self, rows: torch.Tensor, offsets: torch.Tensor, count: int) -> torch.Tensor:
        """As :meth:`TokenHistory.until`, but the first vector in place of those before it."""
        first = self.batch.seq_lens - self.batch.query_start.diff()
        at = (first[rows] + offsets - count + 1)[:, None] + torch.arange(count, device=self.cache.device)  # [n, count]
        at = at.clamp(min=0)
        size = self.cache.shape[1]
        blocks = self.batch.block_tables[rows[:, None], at // size].long()
        return self.cache[blocks, at % size]


def keep_inputs_(inputs: torch.Tensor, batch: Any, layer: int, state: int = 0) -> None:
    """Write the last inputs [tokens, channels] of each row to a state of the layer, and again if drafts prove wrong.

    ``batch``: a :class:`..forward_batch.ForwardBatch` with states.
    """

    def keep(inputs: torch.Tensor, batch: Any) -> torch.Tensor:
        TokenHistory(inputs, batch.states.of_layer[layer][state], batch.states.rows).keep_()
        return inputs

    keep(inputs, batch)
    batch.states.note(keep, inputs)
