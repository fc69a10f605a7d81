"""Sequences over a shuffled paged cache of latents, as the tests of attention to them take them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from stentor.kernels import AttentionBatch, latent_attention, latent_cache_shape, top_tokens, write_latents_
from stentor.kernels.variants import Choice
from stentor.tests.kernels.gpu import DEVICE
from stentor.tests.kernels.helpers import normal

Part = tuple[int, int, int]
"""A sequence, and the positions [begin, end) of it."""


@dataclass(frozen=True)
class Latents:
    """Unwritten slots hold NaN."""

    queries: list[Tensor]
    """One of every position of each sequence: [length, heads, dim]."""
    kept: list[Tensor]
    """What the cache holds of each: [length, dim]."""
    cache: Tensor
    tables: list[list[int]]
    rank: int
    scale: float

    def run(
        self,
        parts: list[Part],
        variant: Choice = "native",
        padding: int = 0,
        chosen: list[Tensor] | None = None,
        pool: int = 1,
        sinks: Tensor | None = None,
    ) -> list[Tensor]:
        """Attends positions [begin, end) of sequences in one batch, to the ``chosen`` ones of each [end - begin, top_k]
        if these are given; before them stand so many rows of padding, and behind them a row with five times as many
        tokens of nobody."""
        batch, counts = self.batch(parts, padding)
        choices = None
        if chosen is not None:
            none = torch.full_like(chosen[0][:1], -1)
            choices = torch.cat([*[none] * padding, *chosen, *[none] * (5 * padding)]).to(DEVICE)
        out = latent_attention(
            self.rows(self.queries, parts, padding),
            self.cache.to(DEVICE),
            batch,
            rank=self.rank,
            scale=self.scale,
            chosen=choices,
            pool=pool,
            sinks=None if sinks is None else sinks.to(DEVICE),
            variant=variant,
        )
        return list(out.split(counts))

    def choose(
        self, parts: list[Part], weights: list[Tensor], top_k: int, variant: Choice = "native", padding: int = 0
    ) -> list[Tensor]:
        """What these positions choose, where the cache is an index of keys; ``weights`` [length, heads] are of every
        position of each sequence."""
        batch, counts = self.batch(parts, padding)
        q, by_head = (self.rows(of, parts, padding) for of in (self.queries, weights))
        found = top_tokens(q, by_head, self.cache.to(DEVICE), batch, top_k=top_k, variant=variant)
        return list(found.split(counts))

    def rows(self, of: list[Tensor], parts: list[Part], padding: int) -> Tensor:
        nobody = of[0][:1]
        real = [of[s][begin:end] for s, begin, end in parts]
        return torch.cat([*[nobody] * padding, *real, *[nobody] * (5 * padding)]).to(DEVICE)

    def batch(self, parts: list[Part], padding: int) -> tuple[AttentionBatch, list[int]]:
        """And how many tokens each row has."""
        size = self.cache.shape[1]
        behind = [5 * padding] if padding else []
        counts = [1] * padding + [end - begin for _, begin, end in parts] + behind
        width = max(len(self.tables[s]) for s, _, _ in parts)
        tables = torch.full((len(counts), width), -9, dtype=torch.int32)  # unused entries lead nowhere
        for row, (s, _, end) in enumerate(parts, padding):
            used = -(-end // size)
            tables[row, :used] = torch.tensor(self.tables[s][:used], dtype=torch.int32)
        batch = AttentionBatch(
            torch.tensor([0, *counts]).cumsum(0).int().to(DEVICE),
            torch.tensor(
                [0] * padding + [end for _, _, end in parts] + [0] * len(behind), dtype=torch.int32, device=DEVICE
            ),
            tables.to(DEVICE),
            torch.zeros(sum(counts), dtype=torch.int64, device=DEVICE),
            max(counts),
            max(end for _, _, end in parts),
            decode_rows=padding,
        )
        return batch, counts


def make_latents(
    lengths: list[int],
    *,
    heads: int = 4,
    rank: int = 32,
    rotated: int = 8,
    size: int = 16,
    dtype: torch.dtype = torch.float32,
) -> Latents:
    blocks, dim = sum(-(-length // size) for length in lengths) + 2, rank + rotated
    free = torch.randperm(blocks, generator=torch.Generator().manual_seed(1)).tolist()
    cache = torch.full(latent_cache_shape(blocks, dim, size), float("nan"), dtype=dtype)
    queries, kept, tables = [], [], []
    for s, length in enumerate(lengths):
        table = [free.pop() for _ in range(-(-length // size))]
        slots = torch.tensor([table[p // size] * size + p % size for p in range(length)])
        kept.append(normal(length, dim, seed=10 * s + 1, dtype=dtype))
        write_latents_(kept[-1], cache, slots)
        queries.append(normal(length, heads, dim, seed=10 * s + 2, dtype=dtype))
        tables.append(table)
    return Latents(queries, kept, cache, tables, rank, dim**-0.5)


@dataclass(frozen=True)
class Entries:
    """An index of entries of several tokens, of whole numbers, whose scores are exact in any order and often equal."""

    q: Tensor
    weights: Tensor
    cache: Tensor
    batch: AttentionBatch
    ratio: int
    block: int
    complete: list[int]
    """The entries that each token sees."""

    def choose(self, top_k: int, variant: Choice) -> Tensor:
        return top_tokens(
            self.q,
            self.weights,
            self.cache,
            self.batch,
            top_k=top_k,
            ratio=self.ratio,
            block=self.block,
            variant=variant,
        )


def make_entries(block: int, ratio: int, dtype: torch.dtype, *, padding: bool = True) -> Entries:
    """Of the last tokens of three sequences in blocks of ``block`` tokens; before them possibly a row of padding."""
    lengths, counts = ([0, 3, 200, 70], [1, 2, 7, 1]) if padding else ([3, 200, 70], [2, 7, 1])
    rows, width = len(lengths), max(lengths) // block + 1
    tables = torch.randperm(rows * width, generator=torch.Generator().manual_seed(1)).int().view(rows, width)
    batch = AttentionBatch(
        torch.tensor([0, *counts]).cumsum(0).int().to(DEVICE),
        torch.tensor(lengths, dtype=torch.int32, device=DEVICE),
        tables.to(DEVICE),
        torch.zeros(sum(counts), dtype=torch.int64, device=DEVICE),
        max(counts),
        224,
    )
    positions = [n - count + at for n, count in zip(lengths, counts, strict=True) for at in range(count)]
    return Entries(
        normal(sum(counts), 8, 20, seed=2).round().to(DEVICE, dtype),
        normal(sum(counts), 8, seed=3).round().to(DEVICE),
        normal(rows * width, -(-block // ratio), 20, seed=1).mul(1.5).round().to(DEVICE, dtype),
        batch,
        ratio,
        block,
        [max(0, position + 1) // ratio for position in positions],
    )
