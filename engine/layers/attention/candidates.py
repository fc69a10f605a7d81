"""Blocks of entries that one index chooses, and the entries of them that later indexes choose (DeepSeek V4.1).

Rows with so few entries that all blocks are chosen are computed without. On a CPU a token is scored over exactly what
it sees, so that its choice does not depend on the batch; on a device many tokens at once, and nothing is read from it.
"""

from collections.abc import Iterator
from typing import Final

import torch

from ...model_config.spec.compressed_attention import CandidatesSpec, EntryIndexSpec
from .entries import EntryBlocks, PassTokens

_BYTES_AT_ONCE: Final = 64 << 20
"""Most bytes of keys that are brought together at once on a device."""


def candidate_blocks(
    q: torch.Tensor,
    by_head: torch.Tensor,
    index: torch.Tensor,
    tokens: PassTokens,
    blocks: EntryBlocks,
    most: int,
    spec: CandidatesSpec,
    *,
    by_token: bool,
) -> torch.Tensor:
    """The blocks with the best score of any entry, and the block of a token's last entry: int64 [tokens, top_k],
    ascending, -1 in place of blocks that a token does not see.

    Args:
        q: the index's queries [tokens, heads, dim]; ``by_head``: weights, float32 [tokens, heads].
        index: keys [blocks, places, dim], in which ``blocks`` finds those of entries.
        most: entries of the longest row.
        by_token: whether tokens are scored one by one.
    """
    count = -(-most // spec.size)
    out = q.new_full((len(q), spec.top_k), -1, dtype=torch.int64)
    for part, seen, entries in _parts(tokens, blocks, most, q.shape[2] + q.shape[1], by_token):
        wide = torch.nn.functional.pad(entries, (0, -entries.shape[1] % spec.size), value=most)
        scores = _scores(q[part], by_head[part], index, tokens.rows[part], blocks, wide)
        scores = scores.masked_fill(wide >= seen[:, None], -torch.inf).unflatten(1, (-1, spec.size)).amax(2)
        last = (seen - 1).div(spec.size, rounding_mode="floor")
        numbers = torch.arange(scores.shape[1], device=q.device)
        scores = scores.masked_fill(numbers == last[:, None], torch.inf)
        best = scores.sort(dim=1, descending=True, stable=True)
        found = best.indices.masked_fill(best.values == -torch.inf, count)[:, : spec.top_k].sort(dim=1).values
        out[part, : found.shape[1]] = found.masked_fill(found == count, -1)
    return out


def top_candidates(
    q: torch.Tensor,
    by_head: torch.Tensor,
    index: torch.Tensor,
    tokens: PassTokens,
    blocks: EntryBlocks,
    among: torch.Tensor | None,
    spec: EntryIndexSpec,
    *,
    by_token: bool,
) -> torch.Tensor:
    """The best entries of the blocks ``among`` those of :func:`candidate_blocks`: int64 [tokens, top_k], ascending,
    followed by -1. The other arguments are as there."""
    assert spec.candidates is not None
    assert among is not None, "an earlier layer chooses the blocks"
    size, out = spec.candidates.size, q.new_full((len(q), spec.top_k), -1, dtype=torch.int64)
    within = torch.arange(size, device=q.device)
    width = among.shape[1] * size
    for part, seen, _ in _parts(tokens, blocks, width, q.shape[2] + q.shape[1], by_token):
        entries = (among[part][:, :, None] * size + within).flatten(1)
        visible = (among[part].repeat_interleave(size, dim=1) >= 0) & (entries < seen[:, None])
        scores = _scores(q[part], by_head[part], index, tokens.rows[part], blocks, entries.where(visible, 0))
        best = scores.masked_fill(~visible, -torch.inf).sort(dim=1, descending=True, stable=True)
        some = best.indices[:, : spec.top_k]
        found = entries.gather(1, some).masked_fill(best.values[:, : spec.top_k] == -torch.inf, 1 << 62)
        found = found.sort(dim=1).values
        out[part, : found.shape[1]] = found.masked_fill(found == 1 << 62, -1)
    return out


def _parts(
    tokens: PassTokens, blocks: EntryBlocks, most: int, each: int, by_token: bool
) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
    """Tokens that are scored together, how many entries each of them sees, and entries [tokens, n] that hold these: of
    one token, or otherwise up to ``most``, for each of which ``each`` numbers are needed."""
    seen = (tokens.positions + 1) // blocks.ratio
    if by_token:
        for at, count in enumerate(seen.tolist()):
            if count:
                yield slice(at, at + 1), seen[at : at + 1], torch.arange(count)[None]
        return
    entries, step = torch.arange(most, device=seen.device), max(1, _BYTES_AT_ONCE // (most * each * 4))
    for first in range(0, len(seen), step):
        some = seen[first : first + step]
        yield slice(first, first + step), some, entries.expand(len(some), -1)


def _scores(
    q: torch.Tensor,
    by_head: torch.Tensor,
    index: torch.Tensor,
    rows: torch.Tensor,
    blocks: EntryBlocks,
    entries: torch.Tensor,
) -> torch.Tensor:
    """float32 [n, m]: the sum over heads of weight · relu(q · k) for each of the ``entries`` [n, m] of each token."""
    keys = index.view(-1, index.shape[2])[blocks.slots(rows, entries)].float()
    products = torch.relu(torch.bmm(q.float(), keys.transpose(1, 2)))  # [n, heads, m]
    return torch.bmm(by_head[:, None], products)[:, 0]
