"""Who holds KV blocks and encoded audio, and who must give blocks up when they run out."""

from ..cache.blocks import BlockPool
from ..cache.encoder_cache import EncoderCache
from ..cache.prefix import PrefixCache
from ..request import Request, Sequence, SequenceState
from .queue import WaitingQueue
from .rows import RowTable


class KVCacheManager:
    """The pool together with everyone who may hold blocks of it: running rows and held prompts.

    A running row also holds the encoder slot of its audio. Who has no row has none, and whoever finds none waits.

    Blocks given up here may be written by a step that is still in flight. They are given out again
    only by a later plan, and the worker runs plans in order, so the new owner's writes come after
    the old owner's; the old owner's result never sets the hash of a block, because its incarnation has passed.
    """

    __slots__ = ("_holders", "block_size", "encoder_cache", "pool", "preemptions", "prefix", "queue", "rows")

    def __init__(
        self, num_blocks: int, block_size: int, prefix_cache: bool, rows: RowTable, encoder_slots: int = 0
    ) -> None:
        self.pool = BlockPool(num_blocks)
        self.encoder_cache = EncoderCache(encoder_slots)
        self.block_size = block_size
        self.prefix = PrefixCache(self.pool, block_size, enabled=prefix_cache)
        self.rows = rows
        self.queue = WaitingQueue()
        self.preemptions = 0
        """For want of blocks; rows put back for another reason are not counted."""
        self._holders: dict[int, Request] = {}

    # ---- prompts held for sequences that have yet to start

    def pin_shared_prefix(self, leader: Sequence) -> None:
        """Keep the full blocks of a prompt just prefilled, for the sequences that fork from it.

        The block of the last prompt token is left out: a fork recomputes it to draw its first token.
        """
        request = leader.request
        shared = leader.blocks[: (request.prompt_len - 1) // self.block_size]
        if not shared:
            return
        for block in shared:
            self.pool.ref(block)
        request.held_blocks = shared
        self._holders[request.rid] = request

    def drop_hold(self, request: Request) -> None:
        """Give back the prompt held for a request, if one is."""
        if request.held_blocks:
            self.pool.free_table(request.held_blocks)
            request.held_blocks = []
            del self._holders[request.rid]

    def settle_fork(self, sequence: Sequence) -> None:
        """A sequence that may have waited for a held prompt has started or ended; the last one drops the hold."""
        if sequence.forked:
            sequence.forked = False
            sequence.request.forks_left -= 1
            if not sequence.request.forks_left:
                self.drop_hold(sequence.request)

    def reclaim_hold(self, keep: Request | None) -> bool:
        """Drop the least important hold, other than that of ``keep``, that nobody runs on; False if there is none."""
        idle = [
            request
            for request in self._holders.values()
            if request is not keep and self.pool.refs(request.held_blocks[-1]) == 1
        ]
        if not idle:
            return False
        self.drop_hold(max(idle, key=lambda request: request.sequences[0].order))
        return True

    # ---- rows

    def release(self, sequence: Sequence) -> None:
        """Take slot, blocks and encoder slot from a running sequence; the caller decides its next state."""
        self.rows.leave(sequence)
        self.pool.free_table(sequence.blocks)
        if sequence.encoder_slot >= 0:
            self.encoder_cache.free(sequence.encoder_slot)
        sequence.drop_row()

    def preempt(self, sequence: Sequence) -> None:
        """Send a running sequence back to the queue with the tokens it has; it will recompute their KV.

        A token of it that is in flight will still come and is still its own, so it may not re-enter
        before: the worker's new row must begin with that token.
        """
        self.release(sequence)
        if sequence.num_in_flight:
            sequence.move((SequenceState.RUNNING,), SequenceState.PREEMPTED)
            return
        if not sequence.request.prompt_done:
            sequence.request.forget_prompt()
        self.queue.push(sequence)

    def preempt_for(self, needy: Sequence) -> bool:
        """See to it that one block is free for a running sequence.

        Takes from the least important first. False when that was ``needy`` itself, which is then
        preempted. The most important row is never turned away: alone it fits, as every accepted
        request does.
        """
        while not self.pool.free_count:
            if self.reclaim_hold(keep=None):
                continue
            victim = self.rows.running[-1]
            self.preempt(victim)
            self.preemptions += 1
            if victim is needy:
                return False
        return True

    def reset(self, num_blocks: int | None = None, encoder_slots: int | None = None) -> None:
        """The KV behind the blocks is gone: nobody holds any, and nothing is cached. See :meth:`.BlockPool.reset`.

        So is what was encoded.
        """
        for request in self._holders.values():
            request.held_blocks = []
        self._holders.clear()
        self.pool.reset(num_blocks)
        self.encoder_cache.reset(encoder_slots)

    def check_integrity(self) -> None:
        """Raise AssertionError unless the pool's counts are exactly what rows and holds add up to."""
        self.pool.check_integrity()
        self.queue.check_integrity()
        self.rows.check_integrity()
        self._check_encoder_slots()
        held = [0] * self.pool.num_blocks
        for request in self._holders.values():
            assert request.forks_left > 0, f"request {request.rid} holds its prompt for nobody"
            for block in request.held_blocks:
                held[block] += 1
        for sequence in self.rows.running:
            for block in sequence.blocks:
                held[block] += 1
        for block, count in enumerate(held):
            assert count == self.pool.refs(block), f"block {block} has {self.pool.refs(block)} references, not {count}"
        for sequence in self.rows.running:
            assert sequence.num_computed_tokens <= sequence.num_scheduled_tokens <= sequence.length, (
                f"sequence {sequence.name}: lengths disagree"
            )
            assert sequence.num_scheduled_tokens <= len(sequence.blocks) * self.block_size, (
                f"sequence {sequence.name} lacks blocks"
            )
            for block in sequence.blocks[sequence.num_scheduled_tokens // self.block_size :]:
                assert held[block] == 1, f"block {block} will be written by sequence {sequence.name} and is shared"

    def _check_encoder_slots(self) -> None:
        self.encoder_cache.check_integrity()
        holders = [0] * self.encoder_cache.slots
        for sequence in self.rows.running:
            audio = sequence.request.audio
            assert (sequence.encoder_slot >= 0) == (audio is not None), (
                f"sequence {sequence.name} lacks an encoder slot, or has one unasked"
            )
            if audio is not None:
                holders[sequence.encoder_slot] += 1
                found = self.encoder_cache.find(audio.digest)
                assert found == sequence.encoder_slot, (
                    f"sequence {sequence.name} holds {sequence.encoder_slot}; what it hears is in {found}"
                )
        for encoder_slot, count in enumerate(holders):
            refs = self.encoder_cache.refs(encoder_slot)
            assert count == refs, f"encoder slot {encoder_slot} has {refs} holders, not {count}"
