"""Choices waiting for a slot and blocks, most important first."""

from heapq import heapify, heappop, heappush

from ..request import Choice, ChoiceState, Order


class WaitingQueue:
    """A heap by :data:`Order`; a choice that leaves from the middle is skipped later.

    Pushing, popping and discarding cost O(log n) amortised, whatever waits. Entries of choices that
    left are swept once they outnumber those that still wait, so the heap stays bounded by the latter.
    """

    __slots__ = ("_heap", "_left", "_only")

    def __init__(self) -> None:
        self._heap: list[tuple[Order, Choice]] = []
        self._left = 0
        self._only: frozenset[int] | None = None

    def __len__(self) -> int:
        return len(self._heap) - self._left

    def push(self, choice: Choice) -> None:
        """Queue a choice; its state becomes WAITING. It must not have an entry already."""
        choice.move((ChoiceState.HELD, ChoiceState.RUNNING, ChoiceState.PREEMPTED), ChoiceState.WAITING)
        heappush(self._heap, (choice.order, choice))

    def restrict(self, rids: frozenset[int] | None) -> None:
        """Show the choices of these requests alone, or with None all again; the others keep their places.

        Looking and taking out then cost O(n).
        """
        self._only = rids

    def peek(self) -> Choice | None:
        """The most important waiting choice."""
        if self._only is not None:
            return self._peek_among(self._only)
        heap = self._heap
        while heap and heap[0][1].state is not ChoiceState.WAITING:
            heappop(heap)
            self._left -= 1
        return heap[0][1] if heap else None

    def pop(self) -> Choice:
        """Take out what :meth:`peek` shows; its state is left to the caller."""
        choice = self.peek()
        if choice is None:
            raise IndexError("pop from an empty waiting queue")
        if self._heap[0][1] is choice:
            heappop(self._heap)
        else:
            self._heap.remove((choice.order, choice))
            heapify(self._heap)
        return choice

    def _peek_among(self, rids: frozenset[int]) -> Choice | None:
        shown = (entry for entry in self._heap if entry[1].request.rid in rids)
        waiting = [entry for entry in shown if entry[1].state is ChoiceState.WAITING]
        return min(waiting)[1] if waiting else None

    def discard(self, choice: Choice) -> None:
        """A waiting choice ends: its state becomes FINISHED, and it will not be seen again."""
        choice.move((ChoiceState.WAITING,), ChoiceState.FINISHED)
        self._left += 1
        if self._left * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[1].state is ChoiceState.WAITING]
            heapify(self._heap)
            self._left = 0

    def check_integrity(self) -> None:
        waiting = [choice for _, choice in self._heap if choice.state is ChoiceState.WAITING]
        assert len(waiting) == len(self), f"the queue counts {len(self)} choices and holds {len(waiting)}"
        assert len(set(map(id, waiting))) == len(waiting), "a choice is queued twice"
