"""The KV cache and encoded media as bookkeeping: what is free, who holds it, what it contains. No torch."""

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
