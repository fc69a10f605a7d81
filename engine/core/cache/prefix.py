"""Prefix cache: full blocks are named by a chain of hashes over salt and tokens, and found by that name."""

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from .blocks import BlockPool
from .followers import Contents, common_length
from .needs import BlockNeeds

DIGEST_BYTES = 32
MAX_TOKEN_ID = 2**31 - 1
"""Token ids are hashed as signed 32-bit integers."""


def root_digest(salt: str, media: bytes = b"", adapter: int = -1) -> bytes:
    """The parent digest of a first block.

    Requests share blocks only with equal ``salt``, equal ``adapter`` and equal ``media``, the digests of media that all
    positions attend to.
    """
    root = blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES, person=b"stentor salt").digest()
    if adapter >= 0:
        named = root + adapter.to_bytes(8, "little")
        root = blake2b(named, digest_size=DIGEST_BYTES, person=b"stentor adapter").digest()
    return blake2b(root + media, digest_size=DIGEST_BYTES, person=b"stentor media").digest() if media else root


def chain_digest(parent: bytes, tokens: Sequence[int], media: bytes = b"") -> bytes:
    """The digest of a full block that holds ``tokens`` behind the prefix ``parent``.

    ``media`` identifies the media that stand in place of some tokens. The hash is cryptographic, because a collision
    would let one client read another's context.
    """
    return _chained(parent, tokens, media, b"stentor block")


def tail_digest(parent: bytes, tokens: Sequence[int], media: bytes = b"") -> bytes:
    """The digest of a block of which only the first positions are filled; never equal to that of a full block."""
    return _chained(parent, tokens, media, b"stentor tail")


def _chained(parent: bytes, tokens: Sequence[int], media: bytes, person: bytes) -> bytes:
    held = parent + array("i", tokens).tobytes() + media
    return blake2b(held, digest_size=DIGEST_BYTES, person=person).digest()


Tables = list[list[int]]
"""Blocks of a prefix in order, by group. Blocks that a window no longer covers are 0."""


class Prefix(NamedTuple):
    """The computed prefix that a row can start from."""

    tables: Tables
    length: int
    """Tokens, in whole blocks and in ``tail``."""
    tail: Sequence[int] = ()
    """For each group, a block whose first positions end the prefix. The row gets a copy, because it writes behind them.
    Empty if the prefix ends with a whole block."""


class PrefixCache:
    """Hashes blocks once their KV is written, and finds them for later prompts.

    Each group has its own blocks and digests for the same tokens. A prompt that ends or diverges within a known block
    can start inside it: the block is found by its parent, and contents are compared. Counters are in tokens, of first
    admissions only; the host tier, if there is one, is asked for tokens that the device has not. With ``enabled`` false
    nothing is hashed or found.
    """

    __slots__ = ("computed", "enabled", "hits", "host_hits", "host_queries", "needs", "pool", "queries", "states")

    def __init__(self, pool: BlockPool, needs: BlockNeeds, *, enabled: bool) -> None:
        self.pool = pool
        self.needs = needs
        self.enabled = enabled
        self.states: BlockPool | None = None
        """Recurrent states behind whole blocks, by the digest of the last block; None if the model has none."""
        self.queries = self.hits = 0
        self.host_queries = self.host_hits = 0
        self.computed = 0
        """Tokens that were found nowhere."""

    def first_needed(self, group: int, blocks: int) -> int:
        """The first block that a token behind ``blocks`` blocks still sees."""
        return self.needs.first_seen(group, blocks * self.needs.block_size)

    @property
    def finds_tails(self) -> bool:
        """Whether a row may start within a block. With recurrent states it may not: these exist behind whole blocks
        only."""
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
        """Hash ``block`` of a row's table of this group; replaces the hash that it had when it held less."""
        self.pool.drop_block_hash(table[block])
        if group:  # lookups within a block only use the first group
            parent, contents = b"", ()
        self.pool.set_block_hash(table[block], _of_group(digest, group), parent, contents)

    def match(self, digests: Sequence[bytes]) -> tuple[Tables, int]:
        """The longest usable prefix: its tables, not referenced yet, and the number of blocks known without regard to
        states.

        A group without a window must know all blocks, a windowed group those at the end, and a model with recurrent
        states must have one behind the last block.
        """
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
        """The blocks, one a group, that share most of ``wanted`` behind ``parent``, and the number of shared positions.

        Empty and 0 unless all groups have such a block.
        """
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
    """For each length of a prefix, the number of consecutive known blocks at its end."""
    runs = [0]
    for block in blocks:
        runs.append(0 if block is None else runs[-1] + 1)
    return runs


def _of_group(digest: bytes, group: int) -> bytes:
    return digest if group == 0 else digest + group.to_bytes(2, "little")
