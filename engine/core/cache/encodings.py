"""The worker's places for encoded audio: who holds them, what they contain, which goes next."""

from collections import OrderedDict
from typing import NamedTuple


class Held(NamedTuple):
    """A place that somebody got."""

    place: int
    encoded: bool
    """Whether the audio lies there already; otherwise whoever holds it has it encoded in its next step."""


class EncodingCache:
    """Hands out places in [0, places) by the digest of what is to lie there, and counts who holds them.

    A place is *free* while nobody holds it. A free one keeps its contents, and is found by them, until :meth:`hold`
    gives it away: empty ones first, then the least recently used. Every operation on one place is O(1).
    """

    __slots__ = ("_by_digest", "_digests", "_free", "_refs", "encoded", "found", "places")

    def __init__(self, places: int) -> None:
        self.encoded = 0
        """Windows that were given a place, since start."""
        self.found = 0
        """Windows that had one."""
        self.reset(places)

    def reset(self, places: int | None = None) -> None:
        """Forget all holders and contents: the memory behind them is gone. What comes may have another size."""
        self.places: int = self.places if places is None else places
        self._refs = [0] * self.places
        self._digests: list[bytes | None] = [None] * self.places
        self._by_digest: dict[bytes, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(self.places))

    @property
    def free_count(self) -> int:
        """Places that :meth:`hold` can give to something new."""
        return len(self._free)

    def find(self, digest: bytes) -> int | None:
        """Where this audio lies; the place may be free."""
        return self._by_digest.get(digest)

    def hold(self, digest: bytes) -> Held | None:
        """One more holder of this audio's place, or the first of a new one; None where all are held."""
        place = self._by_digest.get(digest)
        if place is not None:
            if not self._refs[place]:
                del self._free[place]
            self._refs[place] += 1
            self.found += 1
            return Held(place, encoded=True)
        if not self._free:
            return None
        place, _ = self._free.popitem(last=False)
        before = self._digests[place]
        if before is not None:
            del self._by_digest[before]
        self._digests[place] = digest
        self._by_digest[digest] = place
        self._refs[place] = 1
        self.encoded += 1
        return Held(place, encoded=False)

    def free(self, place: int) -> None:
        """One holder fewer; raises ValueError where there was none."""
        refs = self._refs[place]
        if refs == 0:
            raise ValueError(f"the encoding in place {place} was freed, but nobody holds it")
        self._refs[place] = refs - 1
        if refs == 1:
            self._free[place] = None

    def refs(self, place: int) -> int:
        return self._refs[place]

    def check_integrity(self) -> None:
        """Raise AssertionError with what is wrong, if anything is."""
        assert min(self._refs, default=0) >= 0, f"places with negative reference counts: {self._refs}"
        unheld = {place for place, refs in enumerate(self._refs) if not refs}
        assert unheld == set(self._free), f"free places and counts differ in {sorted(unheld ^ set(self._free))}"
        filled = {digest: place for place, digest in enumerate(self._digests) if digest is not None}
        assert filled == self._by_digest, "contents and their index differ"
        assert len(filled) == sum(digest is not None for digest in self._digests), "one window has two places"
