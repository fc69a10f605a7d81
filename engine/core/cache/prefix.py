"""Prefix reuse: full blocks are named by a chain of hashes over salt and tokens, and found again by name."""

from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from .blocks import BlockPool

DIGEST_BYTES = 32
MAX_TOKEN_ID = 2**31 - 1
"""Token ids are hashed as 32-bit integers."""


def root_digest(salt: str) -> bytes:
    """The parent of a first block; requests under different salts never share one."""
    return blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES, person=b"stentor salt").digest()


def audio_root_digest(salt: str, audio: bytes) -> bytes:
    """Root hash for prompts with this audio: equal tokens must not share blocks across different audio."""
    return blake2b(root_digest(salt) + audio, digest_size=DIGEST_BYTES, person=b"stentor audio").digest()


def chain_digest(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The name of a full block holding ``tokens`` after everything that ``parent`` names.

    A cryptographic hash: whoever could make two prefixes collide would read another's context.
    """
    return blake2b(parent + array("i", tokens).tobytes(), digest_size=DIGEST_BYTES, person=b"stentor block").digest()


class PrefixCache:
    """Hashes blocks once their KV has been written and finds them for later prompts.

    Counters are in tokens, of first admissions alone. With ``enabled`` false nothing is hashed or found.
    """

    __slots__ = ("block_size", "enabled", "hits", "pool", "queries")

    def __init__(self, pool: BlockPool, block_size: int, *, enabled: bool) -> None:
        self.pool = pool
        self.block_size = block_size
        self.enabled = enabled
        self.queries = 0
        self.hits = 0

    def match(self, digests: Iterable[bytes]) -> list[int]:
        """The blocks of the longest known prefix, not referenced yet."""
        found: list[int] = []
        for digest in digests:
            block = self.pool.find(digest)
            if block is None:
                break
            found.append(block)
        return found

    def count(self, asked: int, found: int) -> None:
        """Count one first admission: ``asked`` tokens looked up, ``found`` of them reused."""
        self.queries += asked
        self.hits += found
