"""The scheduler's invariants between any two calls, checked from scratch."""

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

from ..cache.prefix import Tables
from ..sequence import Sequence, SequenceState
from .kv_cache_manager import KVCacheManager
from .output import Output
from .step import InFlightStep


def check_integrity(kv_cache: KVCacheManager, output: Output, flights: Iterable[InFlightStep]) -> None:
    """Raise AssertionError unless requests, rows, queue, blocks and steps in flight agree."""
    _check_kv_cache(kv_cache)
    by_state: dict[SequenceState, set[str]] = {state: set() for state in SequenceState}
    expected: dict[str, tuple[int, int]] = {}
    for rid, request in output.requests.items():
        live = [sequence for sequence in request.sequences if sequence.state is not SequenceState.FINISHED]
        assert rid == request.rid, f"request {request.rid} is kept as {rid}"
        assert request.live == len(live) > 0, f"request {rid} counts {request.live} living sequences, not {len(live)}"
        forks = sum(sequence.forked for sequence in live)
        assert forks == request.forks_left, f"request {rid} expects {request.forks_left} forks, not {forks}"
        assert request.prompt_done or request.leader in live, f"request {rid} has nobody to prefill its prompt"
        for sequence in live:
            by_state[sequence.state].add(sequence.name)
            length = request.prompt_len + len(sequence.outputs) + sequence.num_in_flight
            assert sequence.length == length, f"sequence {sequence.name} has length {sequence.length}, not {length}"
            if sequence.num_in_flight or sequence.num_drafts_in_flight:
                expected[sequence.name] = sequence.num_in_flight, sequence.num_drafts_in_flight
            if sequence.num_drafts_in_flight:
                most = length + sequence.num_drafts_in_flight
                assert most <= sequence.limit_len, f"sequence {sequence.name} may gain tokens up to {most}"
            match sequence.state:
                case SequenceState.HELD:
                    assert not request.prompt_done, f"sequence {sequence.name} waits for a prompt that is done"
                case SequenceState.LOADING:
                    assert request.awaits, f"sequence {sequence.name} stands aside for nothing"
                    assert not sequence.num_in_flight, f"sequence {sequence.name} stands aside with a token in flight"
                case SequenceState.WAITING:
                    assert not request.awaits, f"sequence {sequence.name} is queued and lacks {set(request.awaits)}"
                    assert not sequence.num_in_flight, f"sequence {sequence.name} is queued with a token in flight"
                case SequenceState.PREEMPTED:
                    assert sequence.num_in_flight, f"sequence {sequence.name} waits for a token that is not in flight"
                case _:
                    pass
            if sequence.state is not SequenceState.RUNNING:
                assert not sequence.tables, f"sequence {sequence.name} is {sequence.state.value} and has blocks"
    running = {sequence.name for sequence in kv_cache.rows.running}
    assert by_state[SequenceState.RUNNING] == running, "running sequences differ from the rows"
    assert len(by_state[SequenceState.WAITING]) == len(kv_cache.queue), "waiting sequences differ from the queue"
    steps: Counter[str] = Counter()
    drafts: Counter[str] = Counter()
    for flight in flights:
        for sequence, _, _, max_gained in flight.owners:
            if max_gained and sequence.state is not SequenceState.FINISHED:
                steps[sequence.name] += 1
                drafts[sequence.name] += max_gained - 1
    in_flight = {name: (count, drafts[name]) for name, count in steps.items()}
    assert in_flight == expected, f"sequences expect tokens and drafts {expected}, but in flight are {in_flight}"
    assert output.live_sequences == sum(request.live for request in output.requests.values()), (
        "living sequences miscounted"
    )


def _check_kv_cache(kv_cache: KVCacheManager) -> None:
    """The pool's reference counts are those of rows and pinned prompts."""
    kv_cache.pool.check_integrity()
    kv_cache.queue.check_integrity()
    kv_cache.rows.check_integrity()
    _check_spans(kv_cache)
    kv_cache.adapters.check_integrity()
    if kv_cache.states is not None:
        kv_cache.states.check_integrity(kv_cache.rows.running)
    held = [0] * kv_cache.pool.num_blocks
    for request in kv_cache.pinned.values():
        assert request.forks_left > 0, f"request {request.rid} holds its prompt for nobody"
        _count(request.held_tables, kv_cache.kept_of(request.held_tables), held)
    for sequence in kv_cache.rows.running:
        _count(sequence.tables, sequence.kept, held)
    for block, count in enumerate(held):
        assert count == kv_cache.pool.refs(block), (
            f"block {block} has {kv_cache.pool.refs(block)} references, not {count}"
        )
    promised = sum(sequence.promised for sequence in kv_cache.rows.running)
    assert promised == kv_cache.promised, f"{kv_cache.promised} blocks are promised, to rows {promised}"
    assert kv_cache.free >= 0, f"{-kv_cache.free} blocks more are promised than are free"
    for sequence in kv_cache.rows.running:
        _check_row(kv_cache, sequence, held)


def _count(tables: Tables, kept: SequenceOf[int], held: list[int]) -> None:
    for table, first in zip(tables, kept, strict=True):
        for block in table[first:]:
            held[block] += 1


def _check_row(kv_cache: KVCacheManager, sequence: Sequence, held: list[int]) -> None:
    name, size = f"sequence {sequence.name}", kv_cache.block_size
    computed, scheduled = sequence.num_computed_tokens, sequence.num_scheduled_tokens
    assert computed <= scheduled <= sequence.length, f"{name}: lengths disagree"
    assert scheduled + sequence.num_drafts_in_flight <= sequence.num_blocks * size, f"{name} lacks blocks"
    for group, (table, kept) in enumerate(zip(sequence.tables, sequence.kept, strict=True)):
        assert len(table) == sequence.num_blocks, f"{name} has {len(table)} blocks of group {group}"
        window = kv_cache.windows[group]
        seen = max(0, scheduled - window + 1) // size if window else 0
        assert kept <= seen, f"{name} has left behind what it sees in group {group}"
        if window:
            most = kv_cache.needs.held_at_most[group]
            assert len(table) - kept <= most, f"{name} holds {len(table) - kept} blocks of group {group}, over {most}"
        for block in table[max(kept, scheduled // size) :]:
            assert held[block] == 1, f"block {block} will be written by {name} and is shared"


def _check_spans(kv_cache: KVCacheManager) -> None:
    kv_cache.encoder_cache.check_integrity()
    holders: Counter[bytes] = Counter()
    for sequence in kv_cache.rows.running:
        held, unread = sequence.spans, sequence.request.media.behind(sequence.num_scheduled_tokens)
        assert unread == held[len(held) - len(unread) :], f"sequence {sequence.name} lacks media that it will read"
        holders.update(span.digest for span in held)
        # start of a row that has computed nothing yet, possibly within a span
        began = sequence.num_blocks * kv_cache.block_size
        for span in held:
            read = max(0, span.start) < sequence.num_scheduled_tokens != began
            assert not read or kv_cache.encoder_cache.is_encoded(span.digest), (
                f"sequence {sequence.name} has read media that were not encoded"
            )
    for digest, count in holders.items():
        assert count == kv_cache.encoder_cache.holders(digest), f"media {digest.hex()} have other holders than {count}"
    assert holders.total() == kv_cache.encoder_cache.num_holders, "media are held by nobody"
