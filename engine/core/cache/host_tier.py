"""A second tier of the prefix cache: blocks in host memory that the device has given away, found by their hashes."""

from collections import OrderedDict
from collections.abc import Collection

Copies = list[tuple[int, int]]
"""From and to, in order: blocks of the device from 0 on, and below 0 places in host memory."""


class HostTier:
    """Which hash lies in which place of host memory. Places are numbered downwards from -1, so that no block has the
    number of one.

    A place that somebody holds keeps what it has; of the others the least recently used is overwritten first.
    """

    __slots__ = ("_by_hash", "_hashes", "_held", "capacity")

    def __init__(self) -> None:
        self.capacity = 0
        self._by_hash: OrderedDict[bytes, int] = OrderedDict()
        """The least recently used first."""
        self._hashes: dict[int, bytes] = {}
        self._held: dict[int, int] = {}
        """By place that is held: how often."""

    def reset(self, capacity: int | None = None) -> None:
        """Nothing is found any more. Nobody may hold a place."""
        assert not self._held, "what is held was to be forgotten"
        self.capacity = self.capacity if capacity is None else capacity
        self._by_hash.clear()
        self._hashes.clear()

    @property
    def places(self) -> Collection[int]:
        """Those that have something."""
        return self._hashes.keys()

    def find(self, digest: bytes) -> int | None:
        return self._by_hash.get(digest)

    def hash_of(self, place: int) -> bytes:
        return self._hashes[place]

    def hold(self, place: int) -> None:
        """What is there stays until it is let go; it counts as used now."""
        self._held[place] = self._held.get(place, 0) + 1
        self._by_hash.move_to_end(self._hashes[place])

    def let_go(self, place: int) -> None:
        self._held[place] -= 1
        if not self._held[place]:
            del self._held[place]

    def touch(self, digest: bytes) -> None:
        """It counts as used now."""
        self._by_hash.move_to_end(digest)

    def take(self, digest: bytes) -> int | None:
        """A place for a hash that has none, which it has from now on: one that is empty, or that of the least recently
        used hash; None where all are held."""
        if len(self._hashes) < self.capacity:
            place = -1 - len(self._hashes)
        else:
            old = next((each for each, at in self._by_hash.items() if at not in self._held), None)
            if old is None:
                return None
            place = self._by_hash.pop(old)
        self._by_hash[digest] = place
        self._hashes[place] = digest
        return place

    def check_integrity(self) -> None:
        """Raise AssertionError with what is wrong, if anything is."""
        assert {digest: place for place, digest in self._hashes.items()} == self._by_hash, "hashes and places differ"
        assert self._hashes.keys() == {-1 - n for n in range(len(self._hashes))}, "places are lost"
        assert len(self._hashes) <= self.capacity, "more lies in host memory than it has places"
        assert not self._held, f"places {list(self._held)} are held between two calls"
