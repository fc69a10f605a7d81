"""Allocates KV blocks, encoder slots and state slots to rows, and preempts rows when blocks run out."""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

from stentor.protocols.ipc.cache_groups import CacheGroup, HostSizes, group_of, windows_of

from ..cache.blocks import BlockPool
from ..cache.encoder_cache import EncoderCache
from ..cache.needs import BlockNeeds
from ..cache.prefix import Prefix, PrefixCache, Tables, tail_digest
from ..request import Request
from ..sequence import NEVER_HASHED, Sequence, SequenceState
from .adapters import AdapterCache
from .queue import WaitingQueue
from .rows import RowTable
from .states import StateCache


class KVCacheManager:
    """The block pool together with all holders of its blocks: running rows and pinned prompts.

    Layers with the same cache form a *group*, and a sequence has a block table for each. Blocks of all groups have one
    size, so one pool serves all. Blocks that a window no longer covers are freed as the row advances; their table
    entries become 0. A row takes blocks as its steps need them. The blocks for the rest of its prompt were promised to
    it at admission, so nobody else gets them.

    A running row also holds the media in the encoder cache that it has yet to read. Sequences without a row hold none,
    and wait if there is no space. ``states`` has the slots of recurrent states, if the model has any.

    A step in flight may still write freed blocks. That is safe: they are given out by a later plan, and the worker runs
    plans in order, so the new owner writes later. The old owner's result cannot hash them, because its row generation
    has passed.

    An example of what is free, promised, pinned, kept and revived is in ``docs/design/kv-cache.md`` ("Blocks, step by
    step").
    """

    __slots__ = (
        "adapters",
        "block_size",
        "cross",
        "encoder_cache",
        "groups",
        "host",
        "needs",
        "pinned",
        "pool",
        "preemptions",
        "prefix",
        "promised",
        "queue",
        "rows",
        "states",
        "windowed",
        "windows",
    )

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        prefix_cache: bool,
        rows: RowTable,
        groups: SequenceOf[CacheGroup],
        *,
        chunk: int,
        adapters: AdapterCache,
        host: HostSizes,
    ) -> None:
        """
        Args:
            chunk: most tokens that a step computes of one row.
            host: size of the host tier.
        """
        self.pool = BlockPool(num_blocks)
        self.cross = group_of(groups, "cross")
        self.encoder_cache = EncoderCache(_capacity(self.cross))
        self.block_size = block_size
        self.needs = BlockNeeds(block_size, windows_of(groups), chunk)
        self.windows = self.needs.windows
        self.groups = len(self.windows)
        self.windowed = any(self.windows)
        self.prefix = PrefixCache(self.pool, self.needs, enabled=prefix_cache)
        self.states: StateCache | None = None
        if num_states := _capacity(group_of(groups, "state")):
            self.states = StateCache(num_states, rows.max_rows, block_size, chunk, enabled=prefix_cache)
            self.prefix.states = self.states.pool
        self.resize_host(host)
        self.rows = rows
        self.queue = WaitingQueue()
        self.adapters = adapters
        self.preemptions = 0
        """Preemptions for lack of blocks; others are not counted."""
        self.pinned: dict[int, Request] = {}
        """Requests whose prompts are pinned."""
        self.promised = 0
        """Blocks promised to rows and not taken yet."""

    @property
    def free(self) -> int:
        """Blocks that nobody holds and that are not promised."""
        return self.pool.free_count - self.promised

    def needed_behind(self, prefix: Tables, length: int) -> int:
        """Blocks of the pool, in all groups, that a row with this prefix needs until its tables hold ``length``
        tokens."""
        known, blocks = len(prefix[0]), -(-length // self.block_size)
        found = 0
        for group, most in enumerate(self.needs.held_at_most):
            held = known - self.prefix.first_needed(group, known)
            found += min(blocks - known, max(0, most - held)) if most else blocks - known
        return found

    def revived(self, prefix: Tables) -> int:
        """Blocks of a prefix that count as free until a row uses it: nobody holds them, or they are to be fetched from
        the host tier."""
        blocks = [block for table, first in zip(prefix, self.kept_of(prefix), strict=True) for block in table[first:]]
        return self.unheld(blocks) + sum(block < 0 for block in blocks)

    def unheld(self, blocks: SequenceOf[int]) -> int:
        """How many of ``blocks`` are blocks of the pool, not of the host tier, that nobody holds."""
        return sum(block >= 0 and not self.pool.refs(block) for block in blocks)

    def from_host(self, sequence: Sequence, prefix: Prefix) -> int:
        """Tokens of a sequence's prefix that some group has in the host tier only; all if the state behind them is
        there."""
        if self.states is not None and self.states.is_on_host(sequence, prefix.length):
            return prefix.length
        found = [min(places) < 0 for places in zip(*prefix.tables, strict=True)]
        tail = prefix.length - len(found) * self.block_size
        return found.count(True) * self.block_size + (tail if min(prefix.tail, default=0) < 0 else 0)

    def with_tail(self, sequence: Sequence, tables: Tables, end: int) -> Prefix:
        """Extend a prefix of whole blocks by the known part of the next block, up to position ``end``."""
        blocks = len(tables[0])
        start = blocks * self.block_size
        end = min(end, start + self.block_size)
        if end <= start or not self.prefix.finds_tails or sequence.request.input is not None:
            return Prefix(tables, start)
        parent = sequence.parent_digest(blocks, self.block_size)
        tail, found = self.prefix.match_tail(parent, sequence.contents(start, end))
        return Prefix(tables, start + found, tail)

    # ---- a row's tables

    def _to_take(self, sequence: Sequence, blocks: int) -> int:
        """Blocks of the pool that a row needs until its tables are ``blocks`` long."""
        missing = blocks - sequence.num_blocks
        if missing <= 0:
            return 0
        if not self.windowed:
            return missing * self.groups
        found = 0
        for most, table, kept in zip(self.needs.held_at_most, sequence.tables, sequence.kept, strict=True):
            found += min(missing, max(0, most - (len(table) - kept))) if most else missing
        return found

    def enter(self, sequence: Sequence, prefix: Prefix) -> None:
        """Reference a prefix for a sequence that is about to run, and promise it the blocks for the rest of its
        tokens."""
        sequence.tables = [list(table) for table in prefix.tables]
        sequence.num_blocks = len(prefix.tables[0])
        sequence.kept = [self.prefix.first_needed(group, sequence.num_blocks) for group in range(self.groups)]
        for table, kept in zip(sequence.tables, sequence.kept, strict=True):
            for block in table[kept:]:
                self.pool.ref(block)
        for block in prefix.tail:
            self.pool.ref(block)  # else what is to be copied might be given away before
        for table, kept in zip(sequence.tables, sequence.kept, strict=True):
            table[kept:] = [self.pool.fetch(block) if block < 0 else block for block in table[kept:]]
        sequence.promised_until = -(-sequence.length // self.block_size)
        self._promise(sequence, self.pool.num_blocks)
        if self.states is not None:
            self.states.enter(sequence, sequence.num_blocks * self.block_size)
        if sequence.request.adapter is not None:
            self.adapters.enter(sequence.request.adapter.number)
        for block, own in zip(prefix.tail, self.cover(sequence, prefix.length), strict=True):
            self.pool.copy(block, own)
            self.pool.free(block)

    def name_tail(self, sequence: Sequence) -> None:
        """Hash the written part of a row's last block, so that prompts find it while the row runs and afterwards."""
        start, end = sequence.num_hashed_blocks * self.block_size, sequence.num_computed_tokens
        if end <= start or not self.prefix.finds_tails or sequence.request.input is not None:
            return
        parent = sequence.parent_digest(sequence.num_hashed_blocks, self.block_size)
        digest = tail_digest(parent, sequence.tokens(start, end), sequence.request.media.key(start, end))
        contents = sequence.contents(start, end)
        for group, table in enumerate(sequence.tables):
            self.prefix.name(group, sequence.num_hashed_blocks, digest, table, parent, contents)

    def cover(self, sequence: Sequence, end: int) -> list[int]:
        """Take the blocks for positions before ``end`` of a row; returns them group by group.

        There must be enough: see :meth:`affordable` and :meth:`preempt_for`.
        """
        blocks = -(-end // self.block_size)
        gained = blocks - sequence.num_blocks
        if gained <= 0:
            return []
        taken: list[int] = []
        for table in sequence.tables:
            new = self.pool.allocate_many(gained)
            table.extend(new)
            taken += new
        sequence.num_blocks = blocks
        if sequence.promised:
            self._promise(sequence, sequence.promised - len(taken))
        return taken

    def affordable(self, sequence: Sequence, count: int) -> int:
        """How many of the next ``count`` positions of a row there are blocks for, without preempting."""
        at = sequence.num_scheduled_tokens
        if self.windowed:
            self.leave_behind(sequence, at)
        return self.affordable_from(sequence, at, count)

    def affordable_from(self, sequence: Sequence, at: int, count: int) -> int:
        """How many of ``count`` positions there are blocks for, from ``at`` on; the row must hold blocks for all
        positions before."""
        most = (self.free + sequence.promised) // self.groups + sequence.num_blocks
        return min(count, most * self.block_size - at)

    def leave_behind(self, sequence: Sequence, start: int) -> None:
        """Free the blocks that no position from ``start`` on sees; ``start`` is the minimum at which the row may go on.

        Blocks of one block length more are kept, because a fork of the prompt may begin that much earlier. So are
        blocks that the prefix cache has not hashed yet.
        """
        before = self.pool.free_count
        named = sequence.num_hashed_blocks if self.prefix.enabled and sequence.request.input is None else start
        for group, window in enumerate(self.windows):
            first = min(self.needs.first_seen(group, start - self.block_size), named)
            kept = sequence.kept[group]
            if not window or first <= kept:
                continue
            table = sequence.tables[group]
            for block in table[kept:first]:
                self.pool.free(block)
            table[kept:first] = [0] * (first - kept)
            sequence.kept[group] = first
        if sequence.promised_until > sequence.num_blocks:  # blocks that others hold as well have not become free
            self._promise(sequence, sequence.promised + self.pool.free_count - before)

    def _promise(self, sequence: Sequence, most: int) -> None:
        """Promise a row the blocks for the tokens that it was admitted with, at most ``most``; replaces the former
        promise."""
        promised = max(0, min(most, self._to_take(sequence, sequence.promised_until)))
        self.promised += promised - sequence.promised
        sequence.promised = promised

    def _give_back(self, tables: Tables, kept: SequenceOf[int]) -> None:
        """Free tables from their ends, so that a prefix outlives what was built on it."""
        for table, first in zip(tables, kept, strict=True):
            self.pool.free_table(table[first:])

    # ---- prompts pinned for sequences that have not started

    def pin_shared_prefix(self, leader: Sequence) -> None:
        """Keep the full blocks of a prompt just prefilled, for the sequences that fork from it.

        The block of the last prompt token is left out: a fork recomputes that token to sample its first one.
        """
        request = leader.request
        blocks = (request.prompt_len - 1) // self.block_size
        if not blocks or leader.num_hashed_blocks == NEVER_HASHED:
            return
        if request.media.uncut(blocks * self.block_size) < blocks * self.block_size:
            return  # no row may begin there; forks find what is cached
        if self.states is not None and request.held_state < 0:
            return  # there was no slot for the state that forks begin from
        held: Tables = []
        for group, table in enumerate(leader.tables):
            first = self.prefix.first_needed(group, blocks)
            assert first >= leader.kept[group], "a fork needs what its prompt has left behind"
            for block in table[first:blocks]:
                self.pool.ref(block)
            held.append([0] * first + table[first:blocks])
        request.held_tables = held
        self.pinned[request.rid] = request

    def drop_hold(self, request: Request) -> None:
        """Free the pinned prompt of a request, if there is one."""
        if request.held_tables:
            self._give_back(request.held_tables, self.kept_of(request.held_tables))
            request.held_tables = []
            del self.pinned[request.rid]
        if self.states is not None:
            self.states.drop_hold(request)

    def kept_of(self, tables: Tables) -> list[int]:
        """By group, the first block that a row with this prefix needs."""
        return [self.prefix.first_needed(group, len(tables[0])) for group in range(self.groups)]

    def settle_fork(self, sequence: Sequence) -> None:
        """Count off a fork that has started or ended; the last one frees the pinned prompt."""
        if sequence.forked:
            sequence.forked = False
            sequence.request.forks_left -= 1
            if not sequence.request.forks_left:
                self.drop_hold(sequence.request)

    def reclaim_hold(self, keep: Request | None) -> bool:
        """Free the least important pinned prompt that no row uses, other than that of ``keep``; False if there is
        none."""
        idle = [
            request
            for request in self.pinned.values()
            if request is not keep and self.pool.refs(request.held_tables[0][-1]) == 1
        ]
        if not idle:
            return False
        self.drop_hold(max(idle, key=lambda request: request.sequences[0].order))
        return True

    # ---- rows

    def release(self, sequence: Sequence) -> None:
        """Free slot, blocks and media of a running sequence; the caller decides its next state."""
        self.rows.leave(sequence)
        self.name_tail(sequence)
        self._give_back(sequence.tables, sequence.kept)
        self.promised -= sequence.promised
        for span in sequence.spans:
            self.encoder_cache.free(span)
        if self.states is not None:
            self.states.release(sequence)
        if sequence.request.adapter is not None:
            self.adapters.exit(sequence.request.adapter.number)
        sequence.drop_row()

    def settle_states(self, sequence: Sequence) -> None:
        """Make checkpoints of completed steps available to later prompts."""
        if self.states is not None:
            self.states.settle(sequence)

    def drop_read_spans(self) -> None:
        """Free the media that all planned steps have read. Media to which later positions attend stay with a row."""
        for sequence in self.rows.running:
            done = sequence.num_scheduled_tokens
            while sequence.spans and sequence.request.media.is_read(sequence.spans[0], done):
                self.encoder_cache.free(sequence.spans.pop(0))

    def preempt(self, sequence: Sequence) -> None:
        """Send a running sequence back to the queue with its tokens; their KV will be recomputed.

        If a token of it is in flight, the sequence keeps that token and is queued only after it has come: its new row
        must begin with it.
        """
        self.release(sequence)
        if sequence.num_in_flight:
            sequence.move((SequenceState.RUNNING,), SequenceState.PREEMPTED)
            return
        if not sequence.request.prompt_done:
            sequence.request.forget_prompt()
        self.queue.push(sequence)

    def preempt_for(self, needy: Sequence) -> bool:
        """Make one more block of each group available to a running sequence.

        Preempts the least important rows first. Returns False if that was ``needy`` itself. The most important row is
        never preempted: alone it fits, as every accepted request does.
        """
        if self.windowed:
            self.leave_behind(needy, needy.num_scheduled_tokens)
        while self.free + needy.promised < self.groups:
            if self.reclaim_hold(keep=None):
                continue
            victim = self.rows.running[-1]
            if victim is needy and self.pinned:
                # a pinned prompt also holds what its row's windows have passed, so it can be freed although the row
                # uses the rest
                self.drop_hold(next(iter(self.pinned.values())))
                continue
            self.preempt(victim)
            self.preemptions += 1
            victim.request.num_preemptions += 1
            if victim is needy:
                return False
        return True

    def reset(self, num_blocks: int | None = None, groups: SequenceOf[CacheGroup] | None = None) -> None:
        """Forget all holders and contents, including recurrent states and encoded media: their memory is gone.

        ``groups`` may have other capacities than before. See :meth:`.BlockPool.reset`.
        """
        states = None
        if groups is not None:
            self.cross, states = group_of(groups, "cross"), group_of(groups, "state")
        for request in self.pinned.values():
            request.held_tables = []
        self.pinned.clear()
        self.promised = 0
        self.pool.reset(num_blocks)
        self.encoder_cache.reset(_capacity(self.cross))
        if self.states is not None:
            self.states.reset(None if states is None else states.capacity)

    def resize_host(self, host: HostSizes) -> None:
        """The host tier has room for so much, and nothing in it."""
        self.host = host
        if self.prefix.enabled:
            self.pool.host.reset(host.blocks)
            if self.states is not None:
                self.states.pool.host.reset(host.states)

    @property
    def host_usage(self) -> float:
        """Share of the host tier that holds something, in [0, 1]."""
        room = self.host.blocks * self.host.block_bytes + self.host.states * self.host.state_bytes
        return self._host_bytes(lambda pool: len(pool.host.places)) / room if room else 0.0

    @property
    def host_stored_bytes(self) -> int:
        """Copied to the host tier since the start."""
        return self._host_bytes(lambda pool: pool.stored)

    @property
    def host_loaded_bytes(self) -> int:
        """Copied back from there since the start."""
        return self._host_bytes(lambda pool: pool.fetched)

    def _host_bytes(self, count: Callable[[BlockPool], int]) -> int:
        states = 0 if self.states is None else count(self.states.pool)
        return count(self.pool) * self.host.block_bytes + states * self.host.state_bytes

    def forget_prefixes(self) -> None:
        """Drop all cached prefixes and pinned prompts. Running rows keep their blocks, but no longer hash them."""
        for request in list(self.pinned.values()):
            self.drop_hold(request)
        self.pool.forget_hashes()
        if self.states is not None:
            self.states.forget()
        for sequence in self.rows.running:
            sequence.num_hashed_blocks = NEVER_HASHED


def _capacity(group: CacheGroup | None) -> int:
    return 0 if group is None else group.capacity
