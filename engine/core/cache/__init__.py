"""Bookkeeping of the KV cache and the encoder cache: free space, holders, contents. No torch."""

from .blocks import BlockPool, OutOfBlocks
from .encoder_cache import EncoderCache
from .prefix import PrefixCache, chain_digest, root_digest

__all__ = [
    "BlockPool",
    "EncoderCache",
    "OutOfBlocks",
    "PrefixCache",
    "chain_digest",
    "root_digest",
]
