"""Sequences waiting for a slot and blocks, most important first."""

from heapq import heapify, heappop, heappush

from ..request import Order, Sequence, SequenceState


class WaitingQueue:
    """A heap by :data:`Order`; a sequence that leaves from the middle is skipped later.

    Pushing, popping and discarding cost O(log n) amortised, whatever waits. Entries of sequences that
    left are swept once they outnumber those that still wait, so the heap stays bounded by the latter.
    """

    __slots__ = ("_heap", "_left", "_only")

    def __init__(self) -> None:
        self._heap: list[tuple[Order, Sequence]] = []
        self._left = 0
        self._only: frozenset[int] | None = None

    def __len__(self) -> int:
        return len(self._heap) - self._left

    def push(self, sequence: Sequence) -> None:
        """Queue a sequence; its state becomes WAITING. It must not have an entry already."""
        sequence.move((SequenceState.HELD, SequenceState.RUNNING, SequenceState.PREEMPTED), SequenceState.WAITING)
        heappush(self._heap, (sequence.order, sequence))

    def restrict(self, rids: frozenset[int] | None) -> None:
        """Show the sequences of these requests alone, or with None all again; the others keep their places.

        Looking and taking out then cost O(n).
        """
        self._only = rids

    def peek(self) -> Sequence | None:
        """The most important waiting sequence."""
        if self._only is not None:
            return self._peek_among(self._only)
        heap = self._heap
        while heap and heap[0][1].state is not SequenceState.WAITING:
            heappop(heap)
            self._left -= 1
        return heap[0][1] if heap else None

    def pop(self) -> Sequence:
        """Take out what :meth:`peek` shows; its state is left to the caller."""
        sequence = self.peek()
        if sequence is None:
            raise IndexError("pop from an empty waiting queue")
        if self._heap[0][1] is sequence:
            heappop(self._heap)
        else:
            self._heap.remove((sequence.order, sequence))
            heapify(self._heap)
        return sequence

    def _peek_among(self, rids: frozenset[int]) -> Sequence | None:
        shown = (entry for entry in self._heap if entry[1].request.rid in rids)
        waiting = [entry for entry in shown if entry[1].state is SequenceState.WAITING]
        return min(waiting)[1] if waiting else None

    def discard(self, sequence: Sequence) -> None:
        """A waiting sequence ends: its state becomes FINISHED, and it will not be seen again."""
        sequence.move((SequenceState.WAITING,), SequenceState.FINISHED)
        self._left += 1
        if self._left * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[1].state is SequenceState.WAITING]
            heapify(self._heap)
            self._left = 0

    def check_integrity(self) -> None:
        waiting = [sequence for _, sequence in self._heap if sequence.state is SequenceState.WAITING]
        assert len(waiting) == len(self), f"the queue counts {len(self)} sequences and holds {len(waiting)}"
        assert len(set(map(id, waiting))) == len(waiting), "a sequence is queued twice"
