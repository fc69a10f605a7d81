"""The slots of the worker's encoder cache: who holds them, what they contain, which goes next."""

from collections import OrderedDict
from typing import NamedTuple


class HeldSlot(NamedTuple):
    """A slot that somebody got."""

    slot: int
    encoded: bool
    """Whether the audio lies there already; otherwise whoever holds it has it encoded in its next step."""


class EncoderCache:
    """Hands out slots in [0, slots) by the digest of what is to lie there, and counts who holds them.

    A slot is *free* while nobody holds it. A free one keeps its contents, and is found by them, until :meth:`hold`
    gives it away: empty ones first, then the least recently used. Every operation on one slot is O(1).
    """

    __slots__ = ("_by_digest", "_digests", "_free", "_refs", "encoded", "found", "slots")

    def __init__(self, slots: int) -> None:
        self.encoded = 0
        """Windows that were given a slot, since start."""
        self.found = 0
        """Windows that had one."""
        self.reset(slots)

    def reset(self, slots: int | None = None) -> None:
        """Forget all holders and contents: the memory behind them is gone. What comes may have another size."""
        self.slots: int = self.slots if slots is None else slots
        self._refs = [0] * self.slots
        self._digests: list[bytes | None] = [None] * self.slots
        self._by_digest: dict[bytes, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(self.slots))

    @property
    def free_count(self) -> int:
        """Places that :meth:`hold` can give to something new."""
        return len(self._free)

    def find(self, digest: bytes) -> int | None:
        """Where this audio lies; the slot may be free."""
        return self._by_digest.get(digest)

    def hold(self, digest: bytes) -> HeldSlot | None:
        """One more holder of this audio's slot, or the first of a new one; None where all are held."""
        slot = self._by_digest.get(digest)
        if slot is not None:
            if not self._refs[slot]:
                del self._free[slot]
            self._refs[slot] += 1
            self.found += 1
            return HeldSlot(slot, encoded=True)
        if not self._free:
            return None
        slot, _ = self._free.popitem(last=False)
        before = self._digests[slot]
        if before is not None:
            del self._by_digest[before]
        self._digests[slot] = digest
        self._by_digest[digest] = slot
        self._refs[slot] = 1
        self.encoded += 1
        return HeldSlot(slot, encoded=False)

    def free(self, slot: int) -> None:
        """One holder fewer; raises ValueError where there was none."""
        refs = self._refs[slot]
        if refs == 0:
            raise ValueError(f"the encoding in slot {slot} was freed, but nobody holds it")
        self._refs[slot] = refs - 1
        if refs == 1:
            self._free[slot] = None

    def refs(self, slot: int) -> int:
        return self._refs[slot]

    def check_integrity(self) -> None:
        """Raise AssertionError with what is wrong, if anything is."""
        assert min(self._refs, default=0) >= 0, f"slots with negative reference counts: {self._refs}"
        unheld = {slot for slot, refs in enumerate(self._refs) if not refs}
        assert unheld == set(self._free), f"free slots and counts differ in {sorted(unheld ^ set(self._free))}"
        filled = {digest: slot for slot, digest in enumerate(self._digests) if digest is not None}
        assert filled == self._by_digest, "contents and their index differ"
        assert len(filled) == sum(digest is not None for digest in self._digests), "one window has two slots"
