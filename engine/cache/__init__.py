"""The KV cache as bookkeeping: which blocks are free, who holds them, what they contain. No torch."""

from .blocks import BlockPool, OutOfBlocks
from .prefix import PrefixCache, chain_digest, root_digest

__all__ = ["BlockPool", "OutOfBlocks", "PrefixCache", "chain_digest", "root_digest"]
