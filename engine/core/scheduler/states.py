"""Allocates slots for recurrent states: those that rows write, and checkpoints for later prompts."""

from typing import Final

from ..cache.blocks import BlockPool
from ..request import Request
from ..sequence import NEVER_HASHED, Sequence

SLOTS_A_ROW: Final = 2
"""The slot that it writes, and a checkpoint that it made or begins from."""
_MOST_APART: Final = 1024
"""Most tokens between checkpoints of a long prompt: a prompt that diverges in between recomputes at most as many."""
_WORTH_BLOCKS: Final = 4
"""A checkpoint at the end of a prompt must save this many blocks of work."""


class StateCache:
    """Allocates the slots in which rows keep their recurrent states.

    A state summarises all tokens so far, so it cannot be cut where a later prompt diverges. A *checkpoint* is the state
    behind a whole number of blocks, in a slot that nobody writes any more. Making one needs no copy: the next step
    reads that slot and writes another. It is found by the digest of its last block, and evicted when its slot is
    needed, least recently used first.

    Checkpoints are made at multiples of ``interval`` tokens, where a prompt diverges from known blocks (others may
    diverge there too), at the end of a prompt's last whole block, and where the sequences of a request fork.

    A row holds at most :data:`SLOTS_A_ROW` slots, and there are that many for every row, so none ever waits for one.
    """

    __slots__ = ("_holders", "block_size", "enabled", "interval", "pool", "reserved")

    def __init__(self, slots: int, max_rows: int, block_size: int, interval: int, *, enabled: bool) -> None:
        """``interval`` is limited to :data:`_MOST_APART` and rounded up to whole blocks. With ``enabled`` false prompts
        find no states of others. Raises ValueError for too few slots."""
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
        """Requests that hold the state their sequences fork from, by number."""

    def reset(self, slots: int | None = None) -> None:
        """Forget all holders and contents, because the memory is gone."""
        for request in self._holders.values():
            request.held_state = -1
        self._holders.clear()
        self.pool.reset(slots)

    def forget(self) -> None:
        """Forget all hashes, so that no prompt finds a present checkpoint."""
        self.pool.forget_hashes()

    # ---- rows

    def enter(self, sequence: Sequence, prefix_len: int) -> None:
        """Give a slot to a row that begins behind ``prefix_len`` tokens, where there must be a checkpoint; mutates the
        row."""
        request = sequence.request
        last = self._last_stop(sequence, prefix_len)
        branch = sequence.recurrent.branch
        sequence.recurrent.stops = (branch if branch > prefix_len else 0, last)
        if prefix_len:
            held = request.held_state if request.held_state >= 0 else None
            slot = held if request.held_tables else self._find(sequence, prefix_len)
            assert slot is not None, "a prefix was found without its state"
            self.pool.ref(slot)
            self._leave(sequence, prefix_len, self.pool.fetch(slot) if slot < 0 else slot)
        sequence.recurrent.slot = self.pool.allocate()

    def is_on_host(self, sequence: Sequence, prefix_len: int) -> bool:
        """Whether the state behind so many tokens of a sequence is to be fetched from the host tier."""
        if not prefix_len or sequence.request.held_tables:
            return False
        found = self._find(sequence, prefix_len)
        return found is not None and found < 0

    def next_slot(self, sequence: Sequence) -> int:
        """The slot that the next step of a row writes if it changes, else -1; mutates the row.

        The former slot becomes a checkpoint once it is known to be written.
        """
        at = sequence.num_scheduled_tokens
        if not self._is_stop(sequence, at):
            return -1
        self.settle(sequence)
        own = sequence.recurrent
        if own.checkpoints or (at <= sequence.request.prompt_len and self._find(sequence, at) is not None):
            return -1
        self._leave(sequence, at, own.slot)
        own.slot = self.pool.allocate()
        return own.slot

    def cut(self, sequence: Sequence, count: int) -> int:
        """How many of the next ``count`` tokens of a row end at the next checkpoint, if there is one in between."""
        at = sequence.num_scheduled_tokens
        for stop in sequence.recurrent.stops:
            if at < stop < at + count:
                count = stop - at
        multiple = (at + self.interval // 2 + self.interval - 1) // self.interval * self.interval
        return multiple - at if self.enabled and at < multiple < at + count else count

    def draftable(self, start: int, furthest: int, count: int) -> int:
        """How many of ``count`` drafts behind position ``furthest`` may be planned: they must end before the next
        multiple.

        ``start`` is the minimum position of the row's step. The row reaches the multiple without drafts, so that its
        next step begins at a known position and can make a checkpoint.
        """
        if not self.enabled:
            return count
        stop = (start // self.interval + 1) * self.interval
        return min(count, stop - 1 - furthest)

    def settle(self, sequence: Sequence) -> None:
        """Make checkpoints of completed steps available to later prompts; mutates the row."""
        waiting = []
        for at, slot in sequence.recurrent.checkpoints:
            if at > sequence.num_computed_tokens:
                waiting.append((at, slot))
                continue
            if self.enabled and sequence.num_hashed_blocks != NEVER_HASHED:
                blocks = at // self.block_size
                self.pool.set_block_hash(slot, sequence.block_digests(blocks, self.block_size)[blocks - 1])
            self.pool.free(slot)
        sequence.recurrent.checkpoints = waiting

    def release(self, sequence: Sequence) -> None:
        """Free a row's slots; the caller resets the sequence."""
        self.settle(sequence)
        for slot in (sequence.recurrent.slot, *(slot for _, slot in sequence.recurrent.checkpoints)):
            self.pool.free(slot)

    # ---- sequences that fork from a prompt

    def drop_hold(self, request: Request) -> None:
        """Free the state held for a request's forks, if there is one."""
        if request.held_state >= 0:
            self.pool.free(request.held_state)
            request.held_state = -1
            del self._holders[request.rid]

    def _leave(self, sequence: Sequence, at: int, slot: int) -> None:
        """Turn a slot into a checkpoint of the row's state behind ``at`` tokens."""
        sequence.recurrent.checkpoints.append((at, slot))
        request = sequence.request
        if at != self._fork_stop(sequence) or request.held_state >= 0:
            return
        if len(self._holders) < self.pool.num_blocks - self.reserved:  # only if every row still has its slots
            self.pool.ref(slot)
            request.held_state = slot
            self._holders[request.rid] = request

    def _fork_stop(self, sequence: Sequence) -> int:
        """Prompt tokens behind which the request's other sequences fork; 0 if none is waiting."""
        request = sequence.request
        forks = len(request.sequences) > 1 and not request.prompt_done
        return (request.prompt_len - 1) // self.block_size * self.block_size if forks else 0

    # ---- positions of checkpoints

    def _last_stop(self, sequence: Sequence, prefix_len: int) -> int:
        """The end of the last whole block of the tokens that a row enters with, if a checkpoint there is worth a step;
        else 0."""
        if stop := self._fork_stop(sequence):
            return stop
        stop = (sequence.length - 1) // self.block_size * self.block_size
        before = max(prefix_len, sequence.recurrent.branch, stop // self.interval * self.interval)
        return stop if self.enabled and stop - before >= _WORTH_BLOCKS * self.block_size else 0

    def _is_stop(self, sequence: Sequence, at: int) -> bool:
        return at > 0 and (at in sequence.recurrent.stops or (self.enabled and at % self.interval == 0))

    def _find(self, sequence: Sequence, at: int) -> int | None:
        """The checkpoint behind ``at`` tokens, a multiple of the block size."""
        if not self.enabled:
            return None
        blocks = at // self.block_size
        return self.pool.find(sequence.block_digests(blocks, self.block_size)[blocks - 1])

    def check_integrity(self, running: list[Sequence]) -> None:
        """Raise AssertionError unless slots are held by exactly these rows and the requests."""
        self.pool.check_integrity()
        held = [0] * self.pool.num_blocks
        for sequence in running:
            own, name = sequence.recurrent, sequence.name
            assert own.slot >= 0, f"sequence {name} has no slot for its state"
            assert len(own.checkpoints) < SLOTS_A_ROW, f"sequence {name} holds more than its part"
            held[own.slot] += 1
            assert held[own.slot] == 1, f"the state of {name} is written by another as well"
            for _, slot in own.checkpoints:
                held[slot] += 1
        for sequence in running:
            assert held[sequence.recurrent.slot] == 1, f"what {sequence.name} writes somebody reads"
        for request in self._holders.values():
            held[request.held_state] += 1
        for slot, count in enumerate(held):
            assert count == self.pool.refs(slot), f"state slot {slot} has {self.pool.refs(slot)} holders, not {count}"
