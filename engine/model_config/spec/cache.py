"""What a layer caches of each token, and how much of it a token sees."""

import math
from typing import Literal

import msgspec


class CacheSpec(msgspec.Struct, frozen=True):
    """Layers with equal caches: the same amount a token, for the same time."""

    kind: Literal["full", "window", "latent", "cross"]
    layers: tuple[int, ...]
    window: int
    """Tokens after which one is no longer seen; 0: never."""
    kv_heads: int
    """1 for latents."""
    head_dim: int
    index_dim: int = 0
    """Size of the index's key beside a latent, or beside keys and values; 0: none."""
    index_block: int = 0
    """Tokens of a block that the index chooses, which blocks of the cache must divide, or be divided by if it has one
    key (:attr:`index_every`); 0: it chooses tokens."""
    by_prompt: bool = False
    """Whether what is cached of an answer depends on where its prompt ends."""
    positions: int = 0
    """Encoder positions of a cross group, which every token of a sequence sees."""
    every: int = 1
    """Tokens for which one entry is cached."""
    index_every: int = 0
    """Tokens for which one key of the index is cached; 0: as many as for an entry."""

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers a token in each tensor of a layer: keys and values, or latents; and possibly index keys."""
        index = (self.index_dim,) if self.index_dim else ()
        return (self.head_dim, *index) if self.kind == "latent" else ((self.kv_heads * self.head_dim,) * 2 + index)

    def token_bytes(self, itemsize: int) -> int:
        """Bytes of one token, or encoder position, over all layers; rounded up if entries are of several tokens."""
        places = math.lcm(self.every, self.index_every or self.every)  # tokens of whole entries and keys
        return -(-self.block_bytes(places, itemsize) // places)

    def block_bytes(self, tokens: int, itemsize: int) -> int:
        """Bytes of a block of so many tokens, over all layers."""
        held = sum(width * places for width, places in zip(self.widths, self.entries(tokens), strict=True))
        return held * len(self.layers) * itemsize

    def entries(self, tokens: int) -> tuple[int, ...]:
        """Places in a block of so many tokens: for each of :attr:`widths`, as many as it has entries or keys."""
        places, keys = -(-tokens // self.every), -(-tokens // (self.index_every or self.every))
        of_index = (keys,) if self.index_dim else ()
        return (*(places,) * (len(self.widths) - len(of_index)), *of_index)

    def cached_bytes(self, length: int, itemsize: int) -> int:
        """Bytes of a sequence of ``length`` tokens without those that are no longer seen."""
        seen = min(length, self.window) if self.window else length
        return self.token_bytes(itemsize) * (self.positions or seen)


def seen_pairs(tokens: int, context: int, most: int = 0) -> int:
    """Total number of keys seen by ``tokens`` behind ``context`` others, each token's own included.

    ``most``: limit a token; 0: none.
    """
    growing = max(0, min(tokens, most - context)) if most else tokens
    return growing * context + growing * (growing + 1) // 2 + (tokens - growing) * most
