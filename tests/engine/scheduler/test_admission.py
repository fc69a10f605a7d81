"""Resources that a sequence waits for, sequences that may overtake it, and transfers of a request."""

import random

import msgspec
import pytest

from stentor.engine.core.scheduler import refusals
from stentor.engine.core.sequence import Sequence, SequenceState
from stentor.protocols.ipc.codec import encoder
from stentor.protocols.ipc.inputs import StreamShape
from stentor.tests.engine.fake_engine import Engine
from stentor.tests.engine.media import Heard
from stentor.tests.engine.scheduler.test_audio_requests import transcription_engine, window
from stentor.tests.engine.scheduler.test_properties import submit_random
from stentor.tests.engine.scripted_grammar import ScriptedGrammar


def states(engine: Engine, rid: int) -> list[SequenceState]:
    return [sequence.state for sequence in engine.scheduler._output.requests[rid].sequences]


def plans(engine: Engine) -> list[bytes]:
    return [encoder.encode(plan) for plan in engine.sent]


@pytest.fixture
def mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that hear take text too."""
    monkeypatch.setattr(refusals, "spans_refusal_of", lambda spans, encoder: None)


def oldest(engine: Engine) -> Sequence | None:
    requests = engine.scheduler._output.requests.values()
    waiting = [each for request in requests for each in request.sequences if each.state is SequenceState.WAITING]
    return min(waiting, key=lambda sequence: sequence.order, default=None)


# ---- fair to the oldest


@pytest.mark.proof(each="seed")
@pytest.mark.parametrize("takes_audio", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_the_most_important_is_admitted_after_finitely_many_steps_whatever_comes(
    seed: int, takes_audio: bool, mixed: None
) -> None:
    rng = random.Random(seed)
    engine = Engine(
        num_blocks=12,
        max_num_seqs=rng.randint(2, 6),
        max_num_batched_tokens=24,
        max_model_len=40,
        encoder_slots=rng.randint(1, 2) if takes_audio else 0,
    )
    head, steps, longest = None, 0, 0
    most = 2 * engine.sizes["max_num_seqs"] * engine.max_model_len  # all positions of all rows, a step each
    for _ in range(300):
        prompt = [rng.randrange(12)] * rng.choice([1, 1, 1, 2, 3, 36])
        audio = window(rng.randrange(4)) if takes_audio and rng.random() < 0.5 else None
        engine.submit(prompt, max_tokens=rng.randint(1, 6), priority=rng.choice([0, 0, -3, 5]), audio=audio)
        engine.step()
        now = oldest(engine)
        steps = steps + 1 if now is head else 0
        head, longest = now, max(longest, steps)
        assert steps <= most, f"{head} waits for ever"
    assert longest > 1, "nobody had to wait"
    for rid in engine.clients:
        engine.abort(rid)
    engine.drain()


def test_nobody_overtakes_who_lacks_blocks_though_he_would_fit() -> None:
    engine = Engine(num_blocks=8, block_size=4)
    engine.submit([9] * 8, max_tokens=9)
    engine.step()
    large = engine.submit([1] * 26, max_tokens=1)
    small = engine.submit([2], max_tokens=1)
    engine.step()
    assert states(engine, large) == states(engine, small) == [SequenceState.WAITING]
    assert engine.scheduler.stats().waiting_for == {"blocks": 2}
    engine.drain()
    assert [new.tokens[0] for plan in engine.plans for new in plan.new] == [9, 1, 2]


def test_who_lacks_room_for_media_holds_up_those_who_need_one_and_nobody_else(mixed: None) -> None:
    engine = transcription_engine(encoder_slots=1, max_num_seqs=4)
    engine.submit([5], audio=window(1), max_tokens=6)
    engine.step()
    lacking = engine.submit([6], audio=window(2), max_tokens=2)
    same = engine.submit([7], audio=window(1), max_tokens=2)
    text = engine.submit([8], max_tokens=2)
    engine.step()
    assert states(engine, text) == [SequenceState.RUNNING]
    assert states(engine, lacking) == states(engine, same) == [SequenceState.WAITING]
    assert engine.scheduler.stats().waiting_for == {"encoder": 2}
    engine.drain()
    assert [new.tokens[0] for plan in engine.plans for new in plan.new] == [5, 8, 6, 7]
    engine.check_clients()


# ---- what comes for one request alone


def test_a_grammar_that_is_being_compiled_holds_up_its_own_request_alone() -> None:
    engine = Engine(slow_grammars=True)
    rid = engine.submit([1], max_tokens=3, seeds=[1, 2, 3], grammar=ScriptedGrammar(1))
    engine.load(rid)
    other = engine.submit([2], max_tokens=1)
    assert engine.scheduler.stats().waiting_for == {"grammar": 1, "step": 1}
    engine.step()
    assert states(engine, other) == [SequenceState.RUNNING]
    engine.abort(rid, 1)
    engine.compiled()
    assert states(engine, rid)[0] is SequenceState.LOADING, "for the transfer"
    engine.drain()
    engine.check_clients()


def test_who_ends_while_its_grammar_is_compiled_ends_once() -> None:
    engine = Engine(slow_grammars=True)
    rid = engine.submit([1], max_tokens=3, grammar=ScriptedGrammar(1))
    assert engine.scheduler.lives(rid)
    engine.abort(rid)
    assert not engine.scheduler.lives(rid)
    engine.compiled()
    engine.drain()
    engine.check_clients()


@pytest.mark.parametrize("at_its_limit", [False, True])
def test_a_resumed_sequence_whose_grammar_is_complete_ends_when_that_is_known(at_its_limit: bool) -> None:
    whole = Engine()
    tokens = whole.clients[whole.submit([1], max_tokens=30, grammar=ScriptedGrammar(1))].tokens
    whole.drain()
    engine = Engine(slow_grammars=True)
    limit = len(tokens[0]) if at_its_limit else 30
    rid = engine.submit([1], max_tokens=limit, grammar=ScriptedGrammar(1))
    engine.compiled()
    while not engine.clients[rid].finished:
        engine.step()
    assert engine.clients[rid].finished.pop(0).reason == "stop"
    engine.kill_engine()
    assert states(engine, rid) == [SequenceState.LOADING]
    engine.compiled()
    assert engine.clients[rid].finished[0].reason == "stop"
    engine.drain()
    engine.check_clients()


@pytest.mark.proof(each="seed")
@pytest.mark.parametrize("seed", range(10))
def test_who_is_loading_changes_nothing_for_anybody_else(seed: int) -> None:
    engines = [Engine(num_blocks=16, max_num_seqs=3, max_model_len=48) for _ in range(2)]
    for loading, engine in enumerate(engines):
        draw, rng = random.Random(seed), random.Random(seed)
        for _ in range(30):
            if draw.random() < 0.3 and loading:
                engine.load(engine.submit([7] * draw.randint(1, 40), priority=-9, seeds=[1, 2]))
            submit_random(engine, rng)
            for _ in range(rng.randint(0, 3)):
                engine.step()
    assert plans(engines[0]) == plans(engines[1])
    assert engines[1].loads
    engines[1].drain()
    engines[1].check_clients()


def test_who_was_loaded_takes_its_place_by_its_arrival() -> None:
    engine = Engine(max_num_seqs=1)
    engine.submit([9], max_tokens=6)
    engine.step()
    first = engine.submit([1], max_tokens=1)
    engine.load(first)
    second, third = (engine.submit([token], max_tokens=3) for token in (2, 3))
    assert engine.scheduler.stats().waiting_for == {"row": 2, "transfer": 1}
    while engine.scheduler._output.requests[second].leader.state is SequenceState.WAITING:
        engine.step()
    assert states(engine, first) == [SequenceState.LOADING]
    engine.loaded()
    assert states(engine, first) == states(engine, third) == [SequenceState.WAITING]
    engine.drain()
    assert [new.tokens[0] for plan in engine.plans for new in plan.new] == [9, 2, 1, 3]
    engine.check_clients()


def test_all_sequences_of_a_resumed_request_stand_aside_and_come_back() -> None:
    engine = Engine()
    rid = engine.submit([1, 2], max_tokens=9, seeds=[1, 2, 3])
    for _ in range(4):
        engine.step()
    engine.kill_engine()
    engine.load(rid)
    assert states(engine, rid) == [SequenceState.LOADING] * 3
    assert not engine.plan()
    assert engine.scheduler.stats().waiting_for == {"transfer": 3}
    engine.abort(rid, 1)
    engine.drain()
    engine.check_clients()


def test_a_row_goes_on_while_something_is_loaded_and_stands_aside_only_once_preempted() -> None:
    engine = Engine()
    rid = engine.submit([1, 2], max_tokens=9)
    engine.step()
    engine.load(rid)
    for _ in range(3):
        engine.step()
    assert states(engine, rid) == [SequenceState.RUNNING]
    engine.scheduler.recompute()
    while engine.results:
        engine.deliver()
    assert states(engine, rid) == [SequenceState.LOADING]
    engine.drain()
    engine.check_clients()


def test_a_leader_that_is_aborted_while_it_loads_leaves_the_prompt_to_another() -> None:
    engine = Engine()
    rid = engine.submit([1, 2], max_tokens=3, seeds=[1, 2])
    engine.load(rid)
    engine.abort(rid, 0)
    assert states(engine, rid) == [SequenceState.FINISHED, SequenceState.LOADING]
    engine.drain()
    engine.check_clients()


def test_what_could_not_be_loaded_ends_the_request_once() -> None:
    engine = Engine()
    rid = engine.submit([1, 2], max_tokens=3, seeds=[1, 2])
    engine.load(rid)
    engine.loaded(error="no such adapter")
    ends = engine.clients[rid].finished
    assert [(end.reason, end.message) for end in ends.values()] == [("error", "no such adapter")] * 2
    assert engine.scheduler.prerequisites.loaded(rid, engine.scheduler.epoch) is None
    engine.drain()


def test_what_a_dead_worker_was_loading_is_void_and_its_end_says_nothing() -> None:
    engine = Engine()
    rid = engine.submit([1, 2], max_tokens=3)
    engine.load(rid)
    engine.kill_worker()
    assert states(engine, rid) == [SequenceState.WAITING]
    engine.load(rid)
    engine.loaded(0, "its worker died")
    assert states(engine, rid) == [SequenceState.LOADING], "the second goes on"
    engine.drain()
    engine.check_clients()
    assert engine.clients[rid].finished[0].reason == "length"


def test_a_request_may_be_loading_from_the_beginning_and_wait_for_its_audio_too() -> None:
    engine = Engine(stream=StreamShape(first=5, step=3))
    rid = engine.submit([7], max_tokens=2, streamed=Heard(), loading=True)
    assert engine.scheduler.stats().waiting_for == {"input": 1}
    engine.append(rid, bytes(40), last=True)
    assert engine.scheduler.stats().waiting_for == {"transfer": 1}
    assert not engine.plan()
    engine.drain()
    engine.check_clients()


def test_each_that_waits_is_told_once_and_by_what_it_lacks() -> None:
    engine = Engine(max_num_seqs=2, max_num_batched_tokens=4)
    for token in range(4):
        engine.submit([token] * 6, max_tokens=3)
    assert engine.scheduler.stats().waiting_for == {"step": 4}
    engine.step()
    assert engine.scheduler.stats().waiting_for == {"step": 3}
    engine.load(3)
    for _ in range(4):
        engine.step()
    stats = engine.scheduler.stats()
    assert stats.waiting_for == {"row": 1, "transfer": 1}
    assert stats.waiting == 2
    assert msgspec.convert(msgspec.to_builtins(stats), type(stats)) == stats
    engine.drain()
    assert engine.scheduler.stats().waiting_for == {}
