"""Bookkeeping of the worker's cache of encoded media: slots, holders, capacity, eviction."""

import heapq
from collections import OrderedDict
from collections.abc import Iterable

from stentor.protocols.ipc.inputs import InputSpan


class EncoderCache:
    """Hands out encoder slots by the digest of the media, and counts their holders.

    Capacity is counted in embeddings. Media without a holder stay and can be found until their space is needed, least
    recently used first. A new slot is the lowest free number, so media of one size have slots below ``capacity //
    size``.
    """

    __slots__ = (
        "_begun",
        "_forgotten",
        "_free_slots",
        "_held",
        "_lengths",
        "_next",
        "_refs",
        "_slices",
        "_to_encode",
        "_unheld",
        "capacity",
        "slots",
    )

    def __init__(self, capacity: int) -> None:
        self.reset(capacity)

    def reset(self, capacity: int | None = None) -> None:
        """Forget all holders and contents, because the memory is gone. The new memory may have another size."""
        self.capacity: int = self.capacity if capacity is None else capacity
        self.slots: dict[bytes, int] = {}
        """Slot by digest, of media encoded or to be encoded."""
        self._lengths: dict[bytes, int] = {}
        self._refs: dict[bytes, int] = {}
        self._to_encode: set[bytes] = set()
        self._slices: dict[bytes, int] = {}
        """Media being encoded in slices: the number of that encoding, by digest."""
        self._begun = 0
        self._unheld: OrderedDict[bytes, None] = OrderedDict()
        self._held = 0
        """Embeddings of media that have holders."""
        self._forgotten: list[int] = []
        self._free_slots: list[int] = []
        self._next = 0
        """The lowest slot that was never given out."""

    def has_room(self, spans: Iterable[InputSpan]) -> bool:
        """Whether all these media can be held at once."""
        new = {span.digest: span.length for span in spans if not self._refs.get(span.digest)}
        return self._held + sum(new.values()) <= self.capacity

    def hold(self, span: InputSpan) -> int:
        """Add a holder of these media; returns their slot. There must be room: see :meth:`has_room`."""
        digest = span.digest
        if not self._refs.get(digest):
            self._held += self._lengths.get(digest, span.length)
        if digest in self.slots:
            self._unheld.pop(digest, None)
        else:
            while sum(self._lengths.values()) + span.length > self.capacity:
                self._forget(self._unheld.popitem(last=False)[0])
            self._lengths[digest] = span.length
            self.slots[digest] = self._take_slot()
            self._to_encode.add(digest)
        self._refs[digest] = self._refs.get(digest, 0) + 1
        return self.slots[digest]

    def free(self, span: InputSpan) -> None:
        """Remove a holder. Raises ValueError if there is none."""
        digest = span.digest
        if not self._refs.get(digest):
            raise ValueError(f"media {digest.hex()} were freed, but nobody holds them")
        self._refs[digest] -= 1
        if self._refs[digest]:
            return
        self._held -= self._lengths[digest]
        if digest in self._to_encode or digest in self._slices:
            self._forget(digest)
        else:
            self._unheld[digest] = None

    def is_encoded(self, digest: bytes) -> bool:
        """Whether the media are encoded, or will be once the steps in flight have run."""
        return digest in self.slots and digest not in self._to_encode and digest not in self._slices

    def encode(self, span: InputSpan) -> bool:
        """Whether held media still have to be encoded as a whole. Mutates: they count as encoded afterwards."""
        if span.digest in self._slices:
            del self._slices[span.digest]
            return True
        if span.digest not in self._to_encode:
            return False
        self._to_encode.remove(span.digest)
        return True

    def encode_slice(self, span: InputSpan) -> int:
        """Plan one more slice of held media that are not encoded; returns the number of the encoding, for
        :meth:`complete`."""
        if span.digest in self._to_encode:
            self._to_encode.remove(span.digest)
            self._begun += 1
            self._slices[span.digest] = self._begun
        return self._slices[span.digest]

    def complete(self, digest: bytes, begun: int) -> None:
        """Record that the slices of an encoding are done. Ignored if the media have been evicted meanwhile."""
        if self._slices.get(digest) == begun:
            del self._slices[digest]

    def take_forgotten(self) -> list[int]:
        """Slots of evicted media since the last call."""
        forgotten, self._forgotten = self._forgotten, []
        return forgotten

    def forget(self, digest: bytes) -> None:
        """Forget these media unless they have holders."""
        if digest in self._unheld:
            del self._unheld[digest]
            self._forget(digest)

    def forget_unheld(self) -> None:
        """Forget all media without a holder."""
        while self._unheld:
            self._forget(self._unheld.popitem(last=False)[0])

    def holders(self, digest: bytes) -> int:
        return self._refs.get(digest, 0)

    @property
    def num_holders(self) -> int:
        return sum(self._refs.values())

    def _take_slot(self) -> int:
        if self._free_slots:
            return heapq.heappop(self._free_slots)
        self._next += 1
        return self._next - 1

    def _forget(self, digest: bytes) -> None:
        slot = self.slots.pop(digest)
        self._forgotten.append(slot)
        heapq.heappush(self._free_slots, slot)
        self._to_encode.discard(digest)
        self._slices.pop(digest, None)
        self._unheld.pop(digest, None)
        del self._lengths[digest], self._refs[digest]

    def check_integrity(self) -> None:
        """Raise AssertionError, with the inconsistency, if there is one."""
        assert sum(self._lengths.values()) <= self.capacity, "more lies in the encoder cache than it has room for"
        assert self.slots.keys() == self._lengths.keys() == self._refs.keys(), "slots, lengths and holders differ"
        held = {digest for digest, refs in self._refs.items() if refs}
        assert held == self.slots.keys() - self._unheld.keys(), "what nobody holds and the counts differ"
        assert self._held == sum(self._lengths[digest] for digest in held), "the room of what is held is miscounted"
        assert self._to_encode | self._slices.keys() <= held, "media that nobody holds are to be encoded"
        slots = [*self.slots.values(), *self._free_slots]
        assert sorted(slots) == list(range(self._next)), f"slots are lost, or given twice: {sorted(slots)}"
