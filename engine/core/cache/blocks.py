"""The pool of KV blocks: reference counts, a free list in LRU order, and a hash of each block's contents."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from .events import CacheEvents
from .followers import Contents, Followers
from .host_tier import Copies, HostTier


class OutOfBlocks(RuntimeError):
    """More blocks were asked for than are free."""


class BlockPool:
    """Hands out block numbers in [0, num_blocks) and counts their holders.

    A block is *free* while nobody references it. A free block may keep a *block hash*, the digest of the tokens whose
    KV it holds; :meth:`find` and :meth:`ref` can then take it back until :meth:`allocate` gives it away. Free blocks
    without a hash go first, then those with one, least recently used first. Every operation on one block is O(1).

    A block with a hash may also record its contents and its parent's hash. :meth:`following` then finds it for a prompt
    that shares only its first tokens.

    With a ``host`` tier, a block with a hash is copied there when it is given away, and is still found, under a number
    below 0. :meth:`ref` holds it there until :meth:`fetch` copies it back.
    """

    __slots__ = (
        "_by_hash",
        "_copies",
        "_followers",
        "_free",
        "_hashes",
        "_refs",
        "events",
        "fetched",
        "host",
        "num_blocks",
        "stored",
    )

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"the KV pool has {num_blocks} blocks; at least 1 is needed: give it more memory")
        self.num_blocks = num_blocks
        self.events: CacheEvents | None = None
        """Told of hashes that are lost; None: nobody listens."""
        self._followers = Followers()
        self.host = HostTier()
        self._copies: Copies = []
        self.stored = self.fetched = 0
        """Blocks copied to the host tier, and back, since the start."""
        self.reset()

    def reset(self, num_blocks: int | None = None) -> None:
        """Forget all references and hashes, because the memory is gone, the host tier's too. The new memory may have
        another size."""
        self.num_blocks = self.num_blocks if num_blocks is None else num_blocks
        if self.events is not None:
            self.events.cleared()
        self.host.reset()
        self._copies.clear()
        self._refs = [0] * self.num_blocks
        self._hashes: list[bytes | None] = [None] * self.num_blocks
        self._by_hash: dict[bytes, int] = {}
        self._followers.clear()
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(self.num_blocks))

    def forget_hashes(self) -> None:
        """Forget all hashes, so that no block is found any more, in the host tier either; holders keep their blocks."""
        if self.events is not None:
            self.events.cleared()
        self.host.reset()
        self._hashes = [None] * self.num_blocks
        self._by_hash = {}
        self._followers.clear()

    @property
    def free_count(self) -> int:
        """Blocks that :meth:`allocate` can still give out, including those with a hash."""
        return len(self._free)

    def refs(self, block: int) -> int:
        return self._refs[block]

    def allocate(self) -> int:
        """Take one block, with one reference and no hash. Raises :class:`OutOfBlocks`."""
        if not self._free:
            raise OutOfBlocks(f"all {self.num_blocks} KV blocks are in use")
        block, _ = self._free.popitem(last=False)
        self._store(block)
        self._drop_hash(block)
        self._refs[block] = 1
        return block

    def allocate_many(self, count: int) -> list[int]:
        """Take ``count`` blocks. Raises :class:`OutOfBlocks`, and then takes none."""
        if count > len(self._free):
            raise OutOfBlocks(f"{count} KV blocks were asked for and {len(self._free)} of {self.num_blocks} are free")
        return [self.allocate() for _ in range(count)]

    def _store(self, block: int) -> None:
        """Copy the block to the host tier, if it has a hash and is not there."""
        digest = self._hashes[block]
        if digest is None or not self.host.capacity:
            return
        place = self.host.find(digest)
        if place is not None:
            self.host.touch(digest)
        else:
            place = self.host.take(digest)
            if place is None:
                return
            self._followers.remove(place)
            self.copy(block, place)
            self.stored += 1
        self._followers.move(block, place)

    def fetch(self, place: int) -> int:
        """Take a block, with one reference, and copy a place of the host tier back to it; releases the caller's hold on
        the place. Raises :class:`OutOfBlocks`."""
        block = self.allocate()
        digest = self.host.hash_of(place)
        self._hashes[block] = digest
        self._by_hash[digest] = block
        self._followers.move(place, block)
        self.copy(place, block)
        self.fetched += 1
        self.free(place)
        return block

    def copy(self, source: int, target: int) -> None:
        """Queue a copy between two blocks, or a block and the host tier, for before the next step."""
        self._copies.append((source, target))

    def take_copies(self) -> Copies:
        """Take the queued copies (source, target), to be made in this order before the next step."""
        copies, self._copies = self._copies, []
        return copies

    def ref(self, block: int) -> None:
        """Add a holder. A free block leaves the free list and keeps its hash."""
        if block < 0:
            self.host.hold(block)
            return
        if self._refs[block] == 0:
            del self._free[block]
        self._refs[block] += 1

    def free(self, block: int) -> None:
        """Remove a holder. Raises ValueError if there is none."""
        if block < 0:
            self.host.let_go(block)
            return
        refs = self._refs[block]
        if refs == 0:
            raise ValueError(f"block {block} was freed, but nobody holds it")
        self._refs[block] = refs - 1
        if refs == 1:
            self._free[block] = None
            if self._hashes[block] is None:
                self._free.move_to_end(block, last=False)

    def free_table(self, blocks: Sequence[int]) -> None:
        """Free a block table from its end, so that a prefix outlives what was built on it."""
        for block in reversed(blocks):
            self.free(block)

    def set_block_hash(self, block: int, digest: bytes, parent: bytes = b"", contents: Contents = ()) -> bool:
        """Set the hash of a held block; with ``contents``, :meth:`following` ``parent`` finds it too.

        Returns False, and changes nothing, if another block has that hash.
        """
        if self._refs[block] == 0:
            raise ValueError(f"block {block} was given a hash, but nobody holds it")
        if digest in self._by_hash:
            return self._by_hash[digest] == block
        old = self._hashes[block]
        if old is not None:
            raise ValueError(f"block {block} already has a hash; it must be freed and allocated before it gets another")
        self._hashes[block] = digest
        self._by_hash[digest] = block
        if contents:
            self._followers.add(block, parent, contents)
        return True

    def drop_block_hash(self, block: int) -> None:
        """Remove the hash of a held block, so that it can get that of fuller contents."""
        if self._refs[block] == 0:
            raise ValueError(f"block {block} was to lose its hash, but nobody holds it")
        self._drop_hash(block)

    def _drop_hash(self, block: int) -> None:
        block_hash = self._hashes[block]
        if block_hash is not None:
            del self._by_hash[block_hash]
            self._hashes[block] = None
            self._followers.remove(block)
            if self.events is not None:
                self.events.removed(block_hash)

    def find(self, digest: bytes) -> int | None:
        """The block with this hash, held or free, or its place in the host tier; None if there is none. The caller
        takes it with :meth:`ref`."""
        block = self._by_hash.get(digest)
        return self.host.find(digest) if block is None else block

    def following(self, parent: bytes) -> Iterator[tuple[bytes, Contents]]:
        """Hashes and contents of the blocks that follow ``parent``, newest first."""
        for block, contents in self._followers.of(parent):
            block_hash = self._hashes[block] if block >= 0 else self.host.hash_of(block)
            assert block_hash is not None
            yield block_hash, contents

    def check_integrity(self) -> None:
        """Raise AssertionError, with the inconsistency, if there is one."""
        negative = [block for block, refs in enumerate(self._refs) if refs < 0]
        assert not negative, f"blocks with negative reference counts: {negative}"
        unreferenced = {block for block, refs in enumerate(self._refs) if refs == 0}
        assert unreferenced == set(self._free), (
            f"free list and reference counts differ in blocks {sorted(unreferenced ^ set(self._free))}"
        )
        hashed = {block_hash: block for block, block_hash in enumerate(self._hashes) if block_hash is not None}
        assert hashed == self._by_hash, "hashes and their index differ"
        assert len(hashed) == sum(block_hash is not None for block_hash in self._hashes), "two blocks have one hash"
        self.host.check_integrity()
        self._followers.check_integrity({*hashed.values(), *self.host.places})
