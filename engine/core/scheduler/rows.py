"""The rows on the worker: which sequence has which slot."""

from bisect import insort
from operator import attrgetter

from ..sequence import Sequence, SequenceState

_by_order = attrgetter("order")


class RowTable:
    """Running sequences, most important first, and their slots.

    A slot can be reused at once: a plan lists it in ``freed``, and the worker applies ``freed`` before ``new``.
    """

    __slots__ = ("_free_slots", "_freed", "max_rows", "running")

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.reset()

    def reset(self) -> None:
        """Forget all rows: their worker is gone."""
        self.running: list[Sequence] = []
        self._free_slots = list(range(self.max_rows - 1, -1, -1))
        self._freed: list[int] = []

    @property
    def has_free_slot(self) -> bool:
        return bool(self._free_slots)

    def enter(self, sequence: Sequence) -> None:
        """Give a slot to a sequence that has left the queue; its state becomes RUNNING."""
        sequence.move((SequenceState.WAITING,), SequenceState.RUNNING)
        sequence.slot = self._free_slots.pop()
        insort(self.running, sequence, key=_by_order)

    def leave(self, sequence: Sequence) -> None:
        """Take the slot back. The sequence stays RUNNING until the caller changes its state."""
        self.running.remove(sequence)
        self._free_slots.append(sequence.slot)
        self._freed.append(sequence.slot)

    def take_freed(self) -> list[int]:
        """Slots freed since the last plan, for the next one."""
        freed, self._freed = self._freed, []
        return freed

    def check_integrity(self) -> None:
        slots = [sequence.slot for sequence in self.running]
        assert sorted(slots + self._free_slots) == list(range(self.max_rows)), "slots are lost or given out twice"
        assert all(sequence.state is SequenceState.RUNNING for sequence in self.running), (
            "a row's sequence is not running"
        )
        orders = [sequence.order for sequence in self.running]
        assert orders == sorted(orders), "running sequences are out of order"
        assert len(set(self._freed)) == len(self._freed), "a slot was freed twice between two plans"
