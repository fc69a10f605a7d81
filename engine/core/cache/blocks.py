"""The pool of KV blocks: reference counts, a free list in LRU order, and a label for what a block holds."""

from collections import OrderedDict
from collections.abc import Sequence


class OutOfBlocks(RuntimeError):
    """More blocks were asked for than are free."""


class BlockPool:
    """Hands out block numbers in [0, num_blocks) and counts who holds them.

    A block is *free* while nobody references it. A free block may still carry a *label*, the digest
    of the tokens whose KV it holds; it can then be taken back by :meth:`find` and :meth:`ref` until
    :meth:`allocate` gives it away. Free blocks without a label go first, then the labelled ones,
    least recently used first. Every operation on one block is O(1).
    """

    __slots__ = ("_by_label", "_free", "_labels", "_refs", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"the KV pool has {num_blocks} blocks; at least 1 is needed: give it more memory")
        self.num_blocks = num_blocks
        self.reset()

    def reset(self, num_blocks: int | None = None) -> None:
        """Forget every reference and label: the memory behind them is gone. What comes may have another size."""
        self.num_blocks = self.num_blocks if num_blocks is None else num_blocks
        self._refs = [0] * self.num_blocks
        self._labels: list[bytes | None] = [None] * self.num_blocks
        self._by_label: dict[bytes, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(self.num_blocks))

    @property
    def free_count(self) -> int:
        """Blocks that :meth:`allocate` can still give out, labelled ones included."""
        return len(self._free)

    def refs(self, block: int) -> int:
        return self._refs[block]

    def allocate(self) -> int:
        """One block with one reference and no label. Raises :class:`OutOfBlocks`."""
        if not self._free:
            raise OutOfBlocks(f"all {self.num_blocks} KV blocks are in use")
        block, _ = self._free.popitem(last=False)
        label = self._labels[block]
        if label is not None:
            del self._by_label[label]
            self._labels[block] = None
        self._refs[block] = 1
        return block

    def allocate_many(self, count: int) -> list[int]:
        """``count`` blocks, or :class:`OutOfBlocks` and none."""
        if count > len(self._free):
            raise OutOfBlocks(f"{count} KV blocks were asked for and {len(self._free)} of {self.num_blocks} are free")
        return [self.allocate() for _ in range(count)]

    def ref(self, block: int) -> None:
        """One more holder; a free block leaves the free list and keeps its label."""
        if self._refs[block] == 0:
            del self._free[block]
        self._refs[block] += 1

    def free(self, block: int) -> None:
        """One holder fewer; raises ValueError when there was none."""
        refs = self._refs[block]
        if refs == 0:
            raise ValueError(f"block {block} was freed, but nobody holds it")
        self._refs[block] = refs - 1
        if refs == 1:
            self._free[block] = None
            if self._labels[block] is None:
                self._free.move_to_end(block, last=False)

    def free_table(self, blocks: Sequence[int]) -> None:
        """Free a block table from its end, so that a prefix outlives what was built on it."""
        for block in reversed(blocks):
            self.free(block)

    def label(self, block: int, digest: bytes) -> bool:
        """Say what a held block contains. False, and nothing changed, if another block already has that label."""
        if self._refs[block] == 0:
            raise ValueError(f"block {block} was labelled, but nobody holds it")
        if digest in self._by_label:
            return self._by_label[digest] == block
        old = self._labels[block]
        if old is not None:
            raise ValueError(
                f"block {block} already has a label; it must be freed and allocated before it gets another"
            )
        self._labels[block] = digest
        self._by_label[digest] = block
        return True

    def find(self, digest: bytes) -> int | None:
        """The block with this label, held or free; the caller takes it with :meth:`ref`."""
        return self._by_label.get(digest)

    def check_integrity(self) -> None:
        """Raise AssertionError with what is wrong, if anything is."""
        negative = [block for block, refs in enumerate(self._refs) if refs < 0]
        assert not negative, f"blocks with negative reference counts: {negative}"
        unreferenced = {block for block, refs in enumerate(self._refs) if refs == 0}
        assert unreferenced == set(self._free), (
            f"free list and reference counts differ in blocks {sorted(unreferenced ^ set(self._free))}"
        )
        labelled = {label: block for block, label in enumerate(self._labels) if label is not None}
        assert labelled == self._by_label, "labels and their index differ"
        assert len(labelled) == sum(label is not None for label in self._labels), "two blocks have one label"
