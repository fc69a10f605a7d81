"""The queue of waiting sequences, most important first."""

from collections.abc import Collection
from heapq import heapify, heappop, heappush

from stentor.protocols.ipc.actors import Resource

from ..request import Request
from ..sequence import Order, Sequence, SequenceState


class WaitingQueue:
    """One heap by :data:`Order` for each set of needed resources. Entries of ended sequences are removed later.

    Push, pop and discard cost O(log n) amortised. Entries of sequences that left are swept once they outnumber the
    waiting ones, so the size of a heap stays proportional to those.
    """

    __slots__ = ("_heaps", "_only", "waiting")

    def __init__(self) -> None:
        self._heaps: dict[frozenset[Resource], list[tuple[Order, Sequence]]] = {}
        self.waiting: dict[frozenset[Resource], int] = {}
        """Number of waiting sequences by the resources that they need."""
        self._only: frozenset[int] | None = None

    def __len__(self) -> int:
        return sum(self.waiting.values())

    def push(self, sequence: Sequence) -> None:
        """Queue a sequence: its state becomes WAITING, or LOADING, without an entry, while its request awaits a
        resource.

        It must not have an entry already.
        """
        before = (SequenceState.HELD, SequenceState.LOADING, SequenceState.RUNNING, SequenceState.PREEMPTED)
        if sequence.request.awaits:
            sequence.move(before, SequenceState.LOADING)
            return
        sequence.move(before, SequenceState.WAITING)
        needs = sequence.request.needs
        self.waiting[needs] = self.waiting.get(needs, 0) + 1
        heappush(self._heaps.setdefault(needs, []), (sequence.order, sequence))

    def stand_aside(self, request: Request, resource: Resource) -> None:
        """Take a request's waiting sequences out of the queue until ``resource`` has come."""
        request.awaits |= {resource}
        for sequence in request.sequences:
            if sequence.state is SequenceState.WAITING:
                self.take_out(sequence)
                sequence.move((SequenceState.WAITING,), SequenceState.LOADING)

    def has_come(self, request: Request, resource: Resource) -> None:
        """Record that an awaited resource has come; after the last one, the request's LOADING sequences are queued."""
        request.awaits -= {resource}
        for sequence in request.sequences:
            if sequence.state is SequenceState.LOADING:
                self.push(sequence)

    def restrict(self, rids: frozenset[int] | None) -> None:
        """Show only the sequences of these requests; None: all. The others keep their places.

        While restricted, peeking and taking out cost O(n).
        """
        self._only = rids

    def peek(self, lacked: Collection[Resource] = ()) -> Sequence | None:
        """The most important waiting sequence that needs none of the resources in ``lacked``."""
        first: tuple[Order, Sequence] | None = None
        for needs, heap in self._heaps.items():
            if lacked and not needs.isdisjoint(lacked):
                continue
            found = self._first_of(heap)
            if found is not None and (first is None or found < first):
                first = found
        return None if first is None else first[1]

    def _first_of(self, heap: list[tuple[Order, Sequence]]) -> tuple[Order, Sequence] | None:
        if self._only is not None:
            shown = (entry for entry in heap if entry[1].request.rid in self._only)
            return min((entry for entry in shown if entry[1].state is SequenceState.WAITING), default=None)
        while heap and heap[0][1].state is not SequenceState.WAITING:
            heappop(heap)
        return heap[0] if heap else None

    def take_out(self, sequence: Sequence) -> None:
        """Remove a waiting sequence; the caller changes its state. O(n) unless it is the first."""
        heap = self._heaps[sequence.request.needs]
        if heap[0][1] is sequence:
            heappop(heap)
        else:
            heap.remove((sequence.order, sequence))
            heapify(heap)
        self.waiting[sequence.request.needs] -= 1

    def discard(self, sequence: Sequence) -> None:
        """End a waiting sequence: its state becomes FINISHED, and it is not returned again."""
        sequence.move((SequenceState.WAITING,), SequenceState.FINISHED)
        needs = sequence.request.needs
        self.waiting[needs] -= 1
        heap = self._heaps[needs]
        if len(heap) > 2 * self.waiting[needs]:
            heap[:] = [entry for entry in heap if entry[1].state is SequenceState.WAITING]
            heapify(heap)

    def check_integrity(self) -> None:
        for needs, heap in self._heaps.items():
            waiting = [sequence for _, sequence in heap if sequence.state is SequenceState.WAITING]
            counted = self.waiting[needs]
            assert len(waiting) == counted, f"the queue counts {counted} sequences and holds {len(waiting)}"
            assert len(set(map(id, waiting))) == len(waiting), "a sequence is queued twice"
            assert all(sequence.request.needs is needs for sequence in waiting), "a sequence is in another's heap"
