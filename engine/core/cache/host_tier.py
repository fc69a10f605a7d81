"""A second tier of the prefix cache: blocks in host memory that the device has given away, found by their hashes."""

from collections import OrderedDict
from collections.abc import Collection

Copies = list[tuple[int, int]]
"""From and to, in order: blocks of the device from 0 on, and below 0 places in host memory."""


class HostTier:
    """Which hash lies in which place of host memory. Places are numbered downwards from -1, so that no block has the
    number of one.

    Contents of a held place are kept. Of the others, the least recently used ones are overwritten first.
    """

    __slots__ = ("_by_hash", "_hashes", "_held", "capacity")

    def __init__(self) -> None:
        self.capacity = 0
        self._by_hash: OrderedDict[bytes, int] = OrderedDict()
        """The least recently used first."""
        self._hashes: dict[int, bytes] = {}
        self._held: dict[int, int] = {}
        """Number of holders, by held place."""

    def reset(self, capacity: int | None = None) -> None:
        """Forget all contents, and set the number of places if ``capacity`` is given. No place may be held."""
        assert not self._held, "places are held that are to be forgotten"
        self.capacity = self.capacity if capacity is None else capacity
        self._by_hash.clear()
        self._hashes.clear()

    @property
    def places(self) -> Collection[int]:
        """The places with contents."""
        return self._hashes.keys()

    def find(self, digest: bytes) -> int | None:
        return self._by_hash.get(digest)

    def hash_of(self, place: int) -> bytes:
        return self._hashes[place]

    def hold(self, place: int) -> None:
        """Keep the contents of a place until :meth:`let_go`, as often as it is held; marks them as used now."""
        self._held[place] = self._held.get(place, 0) + 1
        self._by_hash.move_to_end(self._hashes[place])

    def let_go(self, place: int) -> None:
        self._held[place] -= 1
        if not self._held[place]:
            del self._held[place]

    def touch(self, digest: bytes) -> None:
        """Mark the contents with this hash as used now."""
        self._by_hash.move_to_end(digest)

    def take(self, digest: bytes) -> int | None:
        """Give a place to a hash that has none: an empty one, or that of the least recently used hash. None if all are
        held."""
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
