"""The scheduler's invariants between any two calls, checked from scratch."""

from collections import Counter
from collections.abc import Iterable

from ..sequence import SequenceState
from .kv_cache_manager import KVCacheManager
from .output import Output
from .step import InFlightStep


def check_integrity(kv_cache: KVCacheManager, output: Output, flights: Iterable[InFlightStep]) -> None:
    """Raise AssertionError unless requests, rows, queue, blocks and steps in flight agree."""
    kv_cache.check_integrity()
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
