"""What must hold between any two calls of the scheduler, checked from scratch."""

from collections import Counter
from collections.abc import Iterable

from ..request import ChoiceState
from .kv_cache_manager import KVCacheManager
from .output import Output
from .step import InFlightStep


def check_integrity(memory: KVCacheManager, output: Output, flights: Iterable[InFlightStep]) -> None:
    """Raise AssertionError unless requests, rows, queue, blocks and steps in flight agree with one another."""
    memory.check_integrity()
    by_state: dict[ChoiceState, set[str]] = {state: set() for state in ChoiceState}
    expected: dict[str, int] = {}
    for rid, request in output.requests.items():
        live = [choice for choice in request.choices if choice.state is not ChoiceState.FINISHED]
        assert rid == request.rid, f"request {request.rid} is kept as {rid}"
        assert request.live == len(live) > 0, f"request {rid} counts {request.live} living choices, not {len(live)}"
        forks = sum(choice.forked for choice in live)
        assert forks == request.forks_left, f"request {rid} expects {request.forks_left} forks, not {forks}"
        assert request.prompt_done or request.leader in live, f"request {rid} has nobody to prefill its prompt"
        for choice in live:
            by_state[choice.state].add(choice.name)
            length = request.prompt_len + len(choice.outputs) + choice.pending
            assert choice.length == length, f"choice {choice.name} has length {choice.length}, not {length}"
            if choice.pending:
                expected[choice.name] = choice.pending
            match choice.state:
                case ChoiceState.HELD:
                    assert not request.prompt_done, f"choice {choice.name} waits for a prompt that is done"
                case ChoiceState.WAITING:
                    assert not choice.pending, f"choice {choice.name} is queued with a token in flight"
                case ChoiceState.PREEMPTED:
                    assert choice.pending, f"choice {choice.name} waits for a token that is not in flight"
                case _:
                    pass
            if choice.state is not ChoiceState.RUNNING:
                assert not choice.blocks, f"choice {choice.name} is {choice.state.value} and has blocks"
    running = {choice.name for choice in memory.rows.running}
    assert by_state[ChoiceState.RUNNING] == running, "running choices differ from the rows"
    assert len(by_state[ChoiceState.WAITING]) == len(memory.queue), "waiting choices differ from the queue"
    in_flight = Counter(
        choice.name
        for flight in flights
        for choice, _, _, samples in flight.owners
        if samples and choice.state is not ChoiceState.FINISHED
    )
    assert in_flight == expected, f"choices expect tokens {expected}, but in flight are {dict(in_flight)}"
    assert output.live_choices == sum(request.live for request in output.requests.values()), "living choices miscounted"
