"""Index of blocks by parent, so that a prompt which shares only part of a block finds it."""

from collections.abc import Iterator, Sequence
from typing import Final

Contents = Sequence[int | bytes]
"""The known contents of a block by position: a token, or the key of a medium that begins there."""

MOST_FOLLOWERS: Final = 8
"""Blocks of one parent that are compared with a prompt, the newest ones; bounds the scheduler's time."""


class Followers:
    """For each parent digest, the blocks that follow it and their contents."""

    __slots__ = ("_blocks", "_held")

    def __init__(self) -> None:
        self._blocks: dict[bytes, list[int]] = {}
        """By parent, the oldest first."""
        self._held: dict[int, tuple[bytes, Contents]] = {}

    def clear(self) -> None:
        self._blocks.clear()
        self._held.clear()

    def add(self, block: int, parent: bytes, contents: Contents) -> None:
        """Record a block that follows ``parent``; forgets the parent's oldest if there are too many."""
        blocks = self._blocks.setdefault(parent, [])
        if len(blocks) == MOST_FOLLOWERS:
            del self._held[blocks.pop(0)]
        blocks.append(block)
        self._held[block] = parent, contents

    def remove(self, block: int) -> None:
        """Forget a block whose contents change; ignored if it was not recorded."""
        if (held := self._held.pop(block, None)) is None:
            return
        blocks = self._blocks[held[0]]
        blocks.remove(block)
        if not blocks:
            del self._blocks[held[0]]

    def move(self, block: int, to: int) -> None:
        """Record that the contents of ``block`` are now in ``to``. ``block`` is forgotten, and ``to`` takes its place
        unless it follows something already."""
        if block in self._held and to not in self._held:
            self._held[to] = held = self._held.pop(block)
            blocks = self._blocks[held[0]]
            blocks[blocks.index(block)] = to
        else:
            self.remove(block)

    def of(self, parent: bytes) -> Iterator[tuple[int, Contents]]:
        """The blocks that follow ``parent`` and their contents, newest first."""
        return ((block, self._held[block][1]) for block in reversed(self._blocks.get(parent, ())))

    def check_integrity(self, named: set[int]) -> None:
        """Raise AssertionError unless the index is consistent and all its blocks are in ``named``."""
        assert self._held.keys() <= named, f"blocks {self._held.keys() - named} follow something and have no hash"
        listed = [(block, parent) for parent, blocks in self._blocks.items() for block in blocks]
        assert len(listed) == len(self._held), "a block follows two prefixes, or none that is known"
        for block, parent in listed:
            assert self._held[block][0] == parent, f"block {block} follows another prefix than recorded"
        assert all(0 < len(blocks) <= MOST_FOLLOWERS for blocks in self._blocks.values()), "a prefix has no followers"


def common_length(a: Contents, b: Contents) -> int:
    """Length of the common prefix."""
    for position, (one, other) in enumerate(zip(a, b, strict=False)):
        if one != other:
            return position
    return min(len(a), len(b))
