"""Recurrent states: which slot a row writes its state to, and which states are kept for later prompts."""

from typing import Final

from ..cache.blocks import BlockPool
from ..request import Request
from ..sequence import NEVER_HASHED, Sequence

SLOTS_A_ROW: Final = 2
"""The one that it writes, and one that it has left behind or begins from."""
_MOST_APART: Final = 1024
"""Tokens between checkpoints of a long prompt, at most: prompts that part in between compute so many again."""
_WORTH_BLOCKS: Final = 4
"""A checkpoint at the end of a prompt saves at least so many blocks of work, or is not made."""


class StateCache:
    """Hands out the slots in which rows keep their recurrent states.

    A state says what all tokens so far come to, so it cannot be cut where a later prompt parts from an earlier one. A
    *checkpoint* is the state behind a whole number of blocks, in a slot that nobody writes any more. It is made without
    a copy: the step after it reads that slot and writes another one. It is found by the digest of its last block, and
    given up when its slot is needed, least recently used first.

    Checkpoints are made at multiples of ``interval`` tokens, where a prompt parts from what is known of it (others may
    part there too), at the end of a prompt's last whole block, and where sequences of one request part.

    A row holds :data:`SLOTS_A_ROW` slots at most, and there are so many for every row: none ever lacks one.
    """

    __slots__ = ("_holders", "block_size", "enabled", "interval", "pool", "reserved")

    def __init__(self, slots: int, max_rows: int, block_size: int, interval: int, *, enabled: bool) -> None:
        """``enabled``: whether prompts find states of others; ``interval`` is cut to
        :data:`_MOST_APART` and rounded up to whole blocks. Raises
        ValueError where there are too few slots."""
        self.reserved = SLOTS_A_ROW * max_rows
        if slots < self.reserved:
            raise ValueError(
                f"{slots} slots of recurrent states for {max_rows} rows; expected at least {self.reserved}"
            )
        self.pool = BlockPool(slots)
        self.block_size = block_size
        self.interval = -(-min(interval, _MOST_APART) // block_size) * block_size
        self.enabled = enabled
        self._holders: dict[int, Request] = {}
        """Requests that hold the state their sequences start from, by number."""

    def reset(self, slots: int | None = None) -> None:
        """The states are gone, and nobody holds any."""
        for request in self._holders.values():
            request.held_state = -1
        self._holders.clear()
        self.pool.reset(slots)

    def forget(self) -> None:
        """No prompt finds what there is now."""
        self.pool.forget_hashes()

    # ---- rows

    def enter(self, sequence: Sequence, prefix_len: int) -> None:
        """A row begins behind so many tokens, of which there is a checkpoint, and gets a slot; mutates it."""
        request = sequence.request
        last = self._last_stop(sequence, prefix_len)
        sequence.stops = (sequence.branch if sequence.branch > prefix_len else 0, last)
        if prefix_len:
            held = request.held_state if request.held_state >= 0 else None
            slot = held if request.held_tables else self._find(sequence, prefix_len)
            assert slot is not None, "a prefix was found without its state"
            self.pool.ref(slot)
            self._leave(sequence, prefix_len, self.pool.fetch(slot) if slot < 0 else slot)
        sequence.state_slot = self.pool.allocate()

    def is_on_host(self, sequence: Sequence, prefix_len: int) -> bool:
        """Whether the state behind so many tokens of a sequence is to be fetched from the host tier."""
        if not prefix_len or sequence.request.held_tables:
            return False
        found = self._find(sequence, prefix_len)
        return found is not None and found < 0

    def next_slot(self, sequence: Sequence) -> int:
        """Where the next step of a row is to write its state, which it has in another slot so far; -1: where it has it.

        The former slot becomes a checkpoint once it is known to have been written; mutates the row.
        """
        at = sequence.num_scheduled_tokens
        if not self._is_stop(sequence, at):
            return -1
        self.settle(sequence)
        if sequence.checkpoints or (at <= sequence.request.prompt_len and self._find(sequence, at) is not None):
            return -1
        self._leave(sequence, at, sequence.state_slot)
        sequence.state_slot = self.pool.allocate()
        return sequence.state_slot

    def cut(self, sequence: Sequence, count: int) -> int:
        """So many of the next ``count`` tokens of a row as end where a checkpoint is to be."""
        at = sequence.num_scheduled_tokens
        for stop in sequence.stops:
            if at < stop < at + count:
                count = stop - at
        multiple = (at + self.interval // 2 + self.interval - 1) // self.interval * self.interval
        return multiple - at if self.enabled and at < multiple < at + count else count

    def draftable(self, start: int, furthest: int, count: int) -> int:
        """So many of ``count`` drafts behind position ``furthest`` of a row whose step begins at ``start``, or further
        on by drafts in flight: as many as leave it before the next multiple of the interval. It comes there without
        any, so that its next step begins at a known position and can leave its state behind."""
        if not self.enabled:
            return count
        stop = (start // self.interval + 1) * self.interval
        return min(count, stop - 1 - furthest)

    def settle(self, sequence: Sequence) -> None:
        """Steps have completed: what they have left behind is found by later prompts; mutates the row."""
        waiting = []
        for at, slot in sequence.checkpoints:
            if at > sequence.num_computed_tokens:
                waiting.append((at, slot))
                continue
            if self.enabled and sequence.num_hashed_blocks != NEVER_HASHED:
                blocks = at // self.block_size
                self.pool.set_block_hash(slot, sequence.block_digests(blocks, self.block_size)[blocks - 1])
            self.pool.free(slot)
        sequence.checkpoints = waiting

    def release(self, sequence: Sequence) -> None:
        """A row gives its slots back; its sequence forgets them later."""
        self.settle(sequence)
        for slot in (sequence.state_slot, *(slot for _, slot in sequence.checkpoints)):
            self.pool.free(slot)

    # ---- sequences that fork from a prompt

    def drop_hold(self, request: Request) -> None:
        """Give back the state that is held for a request's sequences, if one is."""
        if request.held_state >= 0:
            self.pool.free(request.held_state)
            request.held_state = -1
            del self._holders[request.rid]

    def _leave(self, sequence: Sequence, at: int, slot: int) -> None:
        """A row will not write this slot any more, in which its state behind so many tokens lies."""
        sequence.checkpoints.append((at, slot))
        request = sequence.request
        if at != self._fork_stop(sequence) or request.held_state >= 0:
            return
        if len(self._holders) < self.pool.num_blocks - self.reserved:  # no row lacks one for it
            self.pool.ref(slot)
            request.held_state = slot
            self._holders[request.rid] = request

    def _fork_stop(self, sequence: Sequence) -> int:
        """Tokens of the prompt that other sequences of the request start behind; 0 where none waits for that."""
        request = sequence.request
        forks = len(request.sequences) > 1 and not request.prompt_done
        return (request.prompt_len - 1) // self.block_size * self.block_size if forks else 0

    # ---- where checkpoints are

    def _last_stop(self, sequence: Sequence, prefix_len: int) -> int:
        """The end of the last whole block of what the row enters with, if a checkpoint there is worth a step."""
        if stop := self._fork_stop(sequence):
            return stop
        stop = (sequence.length - 1) // self.block_size * self.block_size
        before = max(prefix_len, sequence.branch, stop // self.interval * self.interval)
        return stop if self.enabled and stop - before >= _WORTH_BLOCKS * self.block_size else 0

    def _is_stop(self, sequence: Sequence, at: int) -> bool:
        return at > 0 and (at in sequence.stops or (self.enabled and at % self.interval == 0))

    def _find(self, sequence: Sequence, at: int) -> int | None:
        """The checkpoint behind so many tokens of it, whole blocks."""
        if not self.enabled:
            return None
        blocks = at // self.block_size
        return self.pool.find(sequence.block_digests(blocks, self.block_size)[blocks - 1])

    def check_integrity(self, running: list[Sequence]) -> None:
        """Raise AssertionError unless slots are held by exactly these rows, and by requests."""
        self.pool.check_integrity()
        held = [0] * self.pool.num_blocks
        for sequence in running:
            assert sequence.state_slot >= 0, f"sequence {sequence.name} has no slot for its state"
            assert len(sequence.checkpoints) < SLOTS_A_ROW, f"sequence {sequence.name} holds more than its part"
            held[sequence.state_slot] += 1
            assert held[sequence.state_slot] == 1, f"the state of {sequence.name} is written by another as well"
            for _, slot in sequence.checkpoints:
                held[slot] += 1
        for sequence in running:
            assert held[sequence.state_slot] == 1, f"what {sequence.name} writes somebody reads"
        for request in self._holders.values():
            held[request.held_state] += 1
        for slot, count in enumerate(held):
            assert count == self.pool.refs(slot), f"state slot {slot} has {self.pool.refs(slot)} holders, not {count}"
