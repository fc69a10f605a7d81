"""Prefix reuse: full blocks are named by a chain of hashes over salt and tokens, and found again by name."""

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from .blocks import BlockPool
from .followers import Contents, common_length
from .needs import BlockNeeds

DIGEST_BYTES = 32
MAX_TOKEN_ID = 2**31 - 1
"""Token ids are hashed as 32-bit integers."""


def root_digest(salt: str, media: bytes = b"", adapter: int = -1) -> bytes:
    """The parent of a first block; requests under different salts never share one, nor those over different
    ``media``, which all positions attend to, or with different adapters."""
    root = blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES, person=b"stentor salt").digest()
    if adapter >= 0:
        named = root + adapter.to_bytes(8, "little")
        root = blake2b(named, digest_size=DIGEST_BYTES, person=b"stentor adapter").digest()
    return blake2b(root + media, digest_size=DIGEST_BYTES, person=b"stentor media").digest() if media else root


def chain_digest(parent: bytes, tokens: Sequence[int], media: bytes = b"") -> bytes:
    """The name of a full block holding ``tokens`` after everything that ``parent`` names, where ``media`` say what
    stands in place of some.

    A cryptographic hash: whoever could make two prefixes collide would read another's context.
    """
    return _chained(parent, tokens, media, b"stentor block")


def tail_digest(parent: bytes, tokens: Sequence[int], media: bytes = b"") -> bytes:
    """The name of a block of which only the first positions are filled; never that of a full one."""
    return _chained(parent, tokens, media, b"stentor tail")


def _chained(parent: bytes, tokens: Sequence[int], media: bytes, person: bytes) -> bytes:
    held = parent + array("i", tokens).tobytes() + media
    return blake2b(held, digest_size=DIGEST_BYTES, person=person).digest()


Tables = list[list[int]]
"""Of each group of layers the blocks of a prefix, in order; what a window has left behind is 0 and leads nowhere."""


class Prefix(NamedTuple):
    """What a row can begin with, because it has been computed."""

    tables: Tables
    length: int
    """Tokens: those of the whole blocks, and some more of ``tail``."""
    tail: Sequence[int] = ()
    """Of each group, a block whose first positions are the last of the prefix. The row writes behind them, so it gets a
    copy. Empty where the prefix ends with a whole block."""

    def whole_blocks(self, block_size: int) -> "Prefix":
        """The same without what needs a copy."""
        return Prefix(self.tables, len(self.tables[0]) * block_size)


class PrefixCache:
    """Hashes blocks once their KV has been written and finds them for later prompts.

    Each group of layers has blocks of its own for the same tokens, and names of its own for them. A prompt that parts
    from what is known within a block, or ends there, finds that block too: by its parent, and by comparing what they
    hold. Counters are in tokens, of first admissions alone: of what is not found on the device the host tier is asked,
    if there is one. With ``enabled`` false nothing is hashed or found.
    """

    __slots__ = ("computed", "enabled", "hits", "host_hits", "host_queries", "needs", "pool", "queries", "states")

    def __init__(self, pool: BlockPool, needs: BlockNeeds, *, enabled: bool) -> None:
        self.pool = pool
        self.needs = needs
        self.enabled = enabled
        self.states: BlockPool | None = None
        """Recurrent states behind whole blocks, by the digest of the last; None where the model keeps none."""
        self.queries = self.hits = 0
        self.host_queries = self.host_hits = 0
        self.computed = 0
        """Those that were found nowhere."""

    def first_needed(self, group: int, blocks: int) -> int:
        """The first block that a token behind so many still sees."""
        return self.needs.first_seen(group, blocks * self.needs.block_size)

    @property
    def finds_tails(self) -> bool:
        """Whether a row may begin within a block: a recurrent state stands behind whole blocks alone."""
        return self.enabled and self.states is None

    def name(
        self,
        group: int,
        block: int,
        digest: bytes,
        table: Sequence[int],
        parent: bytes = b"",
        contents: Contents = (),
    ) -> None:
        """Say what ``block`` of a row's table of this group holds, which may have had the name of a part of it."""
        self.pool.drop_block_hash(table[block])
        if group:  # who looks for a part of it finds that of the first group
            parent, contents = b"", ()
        self.pool.set_block_hash(table[block], _of_group(digest, group), parent, contents)

    def match(self, digests: Sequence[bytes]) -> tuple[Tables, int]:
        """The blocks of the longest prefix that all groups know, not referenced yet: all of it where all is seen, and
        its end where a window is; and with a recurrent state behind it, where there are such. And how many blocks would
        be known without regard to states."""
        longest = len(digests)
        found: list[list[int | None]] = []
        for group, window in enumerate(self.needs.windows):
            blocks = []
            for digest in digests[:longest]:
                block = self.pool.find(_of_group(digest, group))
                if block is None and not window:
                    break
                blocks.append(block)
            longest = len(blocks)
            found.append(blocks)
        runs = [_runs(blocks) for window, blocks in zip(self.needs.windows, found, strict=True) if window]
        groups = [group for group, window in enumerate(self.needs.windows) if window]

        def seen(length: int) -> bool:
            return all(
                run[length] >= length - self.first_needed(g, length) for g, run in zip(groups, runs, strict=True)
            )

        while not seen(longest):
            longest -= 1
        known = longest
        if self.states is not None:
            while longest and not (self.states.find(digests[longest - 1]) is not None and seen(longest)):
                longest -= 1
        firsts = [self.first_needed(group, longest) for group in range(len(found))]
        return [
            [0 if block is None or number < first else block for number, block in enumerate(blocks[:longest])]
            for first, blocks in zip(firsts, found, strict=True)
        ], known

    def match_tail(self, parent: bytes, wanted: Contents) -> tuple[list[int], int]:
        """Of each group the block that begins with most of ``wanted`` behind what ``parent`` names, and how many
        positions that is; none and 0 where no group, or not every group, knows any."""
        found: list[int] = []
        longest = 0
        if not self.finds_tails:
            return found, longest
        for digest, contents in self.pool.following(parent):
            if (length := common_length(contents, wanted)) > longest:
                blocks = [self.pool.find(_of_group(digest, group)) for group in range(len(self.needs.windows))]
                known = [block for block in blocks if block is not None]
                if len(known) == len(blocks):
                    found, longest = known, length
        return found, longest

    def count(self, length: int, found: int, from_host: int, *, looked_up: bool) -> None:
        """Count one first admission: of ``length`` tokens ``found`` are reused, ``from_host`` of these from the host
        tier."""
        self.computed += length - found
        if not looked_up:
            return
        self.queries += length
        self.hits += found - from_host
        if self.pool.host.capacity or (self.states is not None and self.states.host.capacity):
            self.host_queries += length - found + from_host
            self.host_hits += from_host


def _runs(blocks: Sequence[int | None]) -> list[int]:
    """For each length of a prefix, how many blocks at its end are known in a row."""
    runs = [0]
    for block in blocks:
        runs.append(0 if block is None else runs[-1] + 1)
    return runs


def _of_group(digest: bytes, group: int) -> bytes:
    return digest if group == 0 else digest + group.to_bytes(2, "little")
