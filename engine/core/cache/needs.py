"""How many blocks a sequence needs when some layers have a window."""

from collections.abc import Sequence


class BlockNeeds:
    """Block arithmetic for cache groups. Each group has its own blocks for the same tokens; all blocks have one
    size."""

    __slots__ = ("block_size", "held_at_most", "windows")

    def __init__(self, block_size: int, windows: Sequence[int] = (0,), chunk: int = 1) -> None:
        """A row holds the blocks of its window, of the chunk in flight, and of the chunk before until that is complete.

        Args:
            block_size: tokens.
            windows: tokens that each group sees; 0: all.
            chunk: most tokens that a step computes of one sequence.
        """
        self.block_size = block_size
        self.windows = tuple(windows)
        chunks = 2 * -(-chunk // block_size)
        self.held_at_most = tuple(-(-window // block_size) + 2 + chunks if window else 0 for window in self.windows)
        """Most blocks of each windowed group that a row holds while it computes a chunk; 0 for other groups."""

    def of(self, length: int) -> int:
        """Most blocks, in all groups, that one sequence needs until it has ``length`` tokens."""
        blocks = -(-length // self.block_size)
        return sum(min(blocks, most) if most else blocks for most in self.held_at_most)

    def longest(self, num_blocks: int) -> int:
        """Most tokens of a sequence that fits into ``num_blocks``: a multiple of the block size."""
        low, high = 0, num_blocks
        if all(self.held_at_most) and self.of((num_blocks + 1) * self.block_size) <= num_blocks:
            return 1 << 62  # windowed groups need no more for a longer sequence
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.of(middle * self.block_size) <= num_blocks
            low, high = (middle, high) if fits else (low, middle - 1)
        return low * self.block_size

    def first_seen(self, group: int, position: int) -> int:
        """The first block that the token at ``position`` sees in this group."""
        window = self.windows[group]
        return max(0, position - window + 1) // self.block_size if window else 0
