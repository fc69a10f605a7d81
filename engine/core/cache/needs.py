"""How many blocks a sequence needs, where some layers see a window of it."""

from collections.abc import Sequence


class BlockNeeds:
    """Layers that keep alike are a *group*, with blocks of its own for the same tokens; all blocks are of one size."""

    __slots__ = ("block_size", "held_at_most", "windows")

    def __init__(self, block_size: int, windows: Sequence[int] = (0,), chunk: int = 1) -> None:
        """``windows``: of each group the tokens that are seen, 0 for all; ``chunk``: the most that a step computes of
        one sequence. A row holds what its window sees, the chunk that it computes, and the one before until that is
        known to be written."""
        self.block_size = block_size
        self.windows = tuple(windows)
        chunks = 2 * -(-chunk // block_size)
        self.held_at_most = tuple(-(-window // block_size) + 2 + chunks if window else 0 for window in self.windows)
        """Of each group with a window, the blocks that a row holds while it computes a chunk, at most; 0 of others."""

    def of(self, length: int) -> int:
        """Blocks of all groups that a sequence alone needs at most until it has ``length`` tokens."""
        blocks = -(-length // self.block_size)
        return sum(min(blocks, most) if most else blocks for most in self.held_at_most)

    def longest(self, num_blocks: int) -> int:
        """Tokens of the longest sequence that finds room in so many blocks; all its last block's."""
        low, high = 0, num_blocks
        if all(self.held_at_most) and self.of((num_blocks + 1) * self.block_size) <= num_blocks:
            return 1 << 62  # however long it is, it needs no more
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.of(middle * self.block_size) <= num_blocks
            low, high = (middle, high) if fits else (low, middle - 1)
        return low * self.block_size

    def first_seen(self, group: int, position: int) -> int:
        """The first block of which the token at ``position`` sees something."""
        window = self.windows[group]
        return max(0, position - window + 1) // self.block_size if window else 0
