"""Requests whose audio comes while they run: no row goes further than it can hear, and each ends with its input."""

import random
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from stentor.protocols.ipc.inputs import MAX_STREAM_BYTES, StreamShape
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.fake_engine import Engine
from stentor.tests.engine.media import Audio, Heard
from stentor.tests.engine.scheduler.any_order import SEEDS, AnyOrder, many, sizes
from stentor.tests.engine.scripted_grammar import ScriptedGrammar

SHAPE = StreamShape(first=5, step=3)


def streaming(**changes: object) -> Engine:
    return Engine(**{"stream": SHAPE, "num_blocks": 32, **changes})  # type: ignore[arg-type]


def pcm(samples: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(2 * samples)


def settle(engine: Engine) -> int:
    """Runs until nothing can be planned; how many steps that took."""
    before = len(engine.plans)
    while engine.plan() or engine.results:
        if engine.results:
            engine.deliver()
        engine.scheduler.check_integrity()
    return len(engine.plans) - before


def drawn(engine: Engine, rid: int) -> int:
    return len(engine.clients[rid].tokens.get(0, []))


def test_a_row_draws_one_token_for_each_position_it_can_hear() -> None:
    engine = streaming()
    rid = engine.submit([7, 7], max_tokens=30, streamed=Heard(pcm(4)))
    assert settle(engine) == 0, "not even the first position"
    engine.append(rid, pcm(1, 1))
    assert settle(engine) == 0, "the prompt has two"
    engine.append(rid, pcm(3, 2))
    settle(engine)
    assert drawn(engine, rid) == 1
    engine.append(rid, pcm(2, 3))
    assert settle(engine) == 0
    engine.append(rid, pcm(5, 4))
    settle(engine)
    assert drawn(engine, rid) == 3
    engine.append(rid, b"", last=True)
    settle(engine)
    assert engine.clients[rid].finished[0].reason == "stop"
    assert drawn(engine, rid) == 4, "15 samples are five positions"
    engine.check_empty()
    engine.check_clients()


def test_a_row_that_waits_for_input_takes_nothing_from_others() -> None:
    engine = streaming(max_num_batched_tokens=4, max_num_seqs=4)
    waiting = engine.submit([7, 7], max_tokens=30, streamed=Heard(pcm(8)))
    settle(engine)
    assert drawn(engine, waiting) == 1
    later = engine.submit([5] * 9, max_tokens=3, streamed=Heard(pcm(50), ended=True))
    settle(engine)
    assert engine.clients[later].finished[0].reason == "length"
    assert drawn(engine, waiting) == 1
    assert engine.scheduler.stats().running == 1
    engine.append(waiting, b"", last=True)
    settle(engine)
    engine.check_clients()


def test_more_rows_may_not_wait_than_a_step_can_serve() -> None:
    engine = streaming(max_num_batched_tokens=3, max_num_seqs=6)
    rids = [engine.submit([7], max_tokens=9, streamed=Heard(pcm(5, seed))) for seed in range(6)]
    settle(engine)
    assert engine.scheduler.stats().running == 3
    for rid in rids:
        engine.append(rid, pcm(20, rid), last=True)
    settle(engine)
    engine.check_clients()


@pytest.mark.parametrize("samples", [0, 1, 3, 6])
def test_an_input_that_ends_within_the_prompt_goes_on_as_silence(samples: int) -> None:
    engine = streaming()
    rid = engine.submit([7] * 4, max_tokens=30, streamed=Heard())
    engine.append(rid, pcm(samples), last=True)
    settle(engine)
    assert engine.clients[rid].finished[0].reason == "stop"
    assert drawn(engine, rid) == 1
    engine.check_clients()


def test_an_end_that_comes_when_all_has_been_heard_ends_the_row_at_once() -> None:
    engine = streaming()
    rid = engine.submit([7], max_tokens=30, streamed=Heard(pcm(12)))
    settle(engine)
    assert drawn(engine, rid) == 3
    engine.append(rid, b"", last=True)
    settle(engine)
    assert drawn(engine, rid) == 4
    ended = engine.submit([7], max_tokens=30, streamed=Heard(pcm(5)))
    settle(engine)
    engine.append(ended, b"", last=True)
    settle(engine)
    engine.check_clients()
    exact = Engine(stream=StreamShape(first=1, step=1))
    rid = exact.submit([7], max_tokens=30, streamed=Heard(pcm(3)))
    settle(exact)
    steps = len(exact.plans)
    exact.append(rid, b"", last=True)
    assert exact.clients[rid].finished[0].reason == "stop"
    assert len(exact.plans) == steps, "nothing was left to compute"
    exact.check_clients()


def test_the_last_token_may_be_in_flight_when_the_end_comes() -> None:
    engine = Engine(stream=StreamShape(first=1, step=1))
    rid = engine.submit([7], max_tokens=30, streamed=Heard(pcm(1)))
    assert engine.plan()
    engine.append(rid, b"", last=True)
    assert not engine.clients[rid].finished
    assert not engine.plan()
    engine.deliver()
    assert engine.clients[rid].finished[0].reason == "stop"
    engine.check_clients()
    engine.check_empty()


def test_who_waits_for_its_first_input_lets_others_pass() -> None:
    engine = streaming(max_num_seqs=1)
    first = engine.submit([7], streamed=Heard())
    second = engine.submit([8], max_tokens=2, streamed=Heard(pcm(9)))
    settle(engine)
    assert engine.clients[second].finished[0].reason == "length"
    engine.append(first, pcm(9), last=True)
    settle(engine)
    engine.check_clients()


def test_a_worker_that_died_is_followed_by_one_that_hears_everything_again() -> None:
    engine = streaming()
    rid = engine.submit([7, 7], max_tokens=30, streamed=Heard(pcm(12)))
    settle(engine)
    for engine_too in (False, True):
        engine.append(rid, pcm(3, drawn(engine, rid)))
        engine.plan()
        if engine_too:
            engine.kill_engine()
        else:
            engine.kill_worker()
        before = len(engine.plans)
        settle(engine)
        given = [each for plan in engine.plans[before:] for each in plan.inputs]
        heard = b"".join(engine.shelf.reader.read(piece) for each in given for piece in each.pieces)
        assert heard == engine.clients[rid].streamed.pcm  # type: ignore[union-attr]
    engine.append(rid, pcm(1), last=True)
    settle(engine)
    engine.check_clients()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"streamed": None}, "needs streamed audio"),
        ({"seeds": [1, 2]}, "one sequence, not 2"),
        ({"max_tokens": 0}, "at least one token"),
        ({"streamed": Heard(b"123")}, "whole samples"),
        ({"streamed": Heard(bytes(MAX_STREAM_BYTES + 2))}, "more than 1048 s of audio"),
        ({"grammar": ScriptedGrammar(1)}, "follows no grammar"),
        ({"audio": Audio(b"12", b"0" * 16)}, "takes no audio"),
    ],
)
def test_what_cannot_be_streamed_is_refused(changes: dict[str, object], message: str) -> None:
    engine = streaming()
    given: dict[str, object] = {"prompt": [5, 6], "streamed": Heard(), **changes}
    rid = engine.submit(**given)  # type: ignore[arg-type]
    (ended,) = {each.message for each in engine.clients[rid].finished.values()}
    assert ended is not None
    assert message in ended


def test_a_model_that_does_not_hear_takes_no_streamed_audio() -> None:
    engine = Engine()
    rid = engine.submit([5], streamed=Heard())
    assert "takes no streamed audio" in str(engine.clients[rid].finished[0].message)


@pytest.mark.parametrize(
    ("before", "more", "message"),
    [
        (Heard(b"", ended=True), b"12", "after the last"),
        (Heard(), b"123", "whole samples"),
        (Heard(bytes(MAX_STREAM_BYTES)), b"12", "more than 1048 s"),
    ],
)
def test_what_cannot_be_appended_ends_the_request(before: Heard, more: bytes, message: str) -> None:
    engine = streaming()
    rid = engine.submit([5], streamed=before)
    engine.append(rid, more)
    assert message in str(engine.clients[rid].finished[0].message)
    engine.append(rid, b"12")
    engine.check_empty()
    other = Engine()
    rid = other.submit([5])
    other.clients[rid].streamed = Heard()
    other.append(rid, b"12")
    assert "has no streamed audio" in str(other.clients[rid].finished[0].message)


class StreamMachine(AnyOrder):
    @initialize(
        sizes=sizes(st.integers(24, 60)),
        shape=st.builds(StreamShape, first=st.sampled_from([1, 2, 5]), step=st.sampled_from([1, 3])),
        seed=SEEDS,
    )
    def start(self, sizes: dict[str, Any], shape: StreamShape, seed: int) -> None:
        self.begin(seed, max_model_len=24, stream=shape, **sizes)

    def listening(self) -> list[int]:
        clients = self.engine.clients.items()
        return [rid for rid, client in clients if client.streamed and not client.streamed.ended and not client.finished]

    @rule()
    def submit(self) -> None:
        rng = self.rng
        params = SamplingParams(
            max_tokens=rng.choice([1, 3, 9, 40]),
            eos_token_ids=rng.choice([(), (0,)]),
            logprobs=rng.choice([None, 0]),
            prompt_logprobs=rng.choice([None, None, 0]),
        )
        prompt = [rng.randrange(9) for _ in range(rng.randint(1, 6))]
        streamed = Heard(rng.randbytes(2 * rng.choice([0, 1, 8, 30])), rng.random() < 0.2)
        self.engine.submit(
            prompt, params, seeds=[rng.getrandbits(64)], priority=rng.choice([0, 0, -3, 7]), streamed=streamed
        )

    @precondition(lambda self: self.listening())
    @rule(samples=st.integers(0, 12), last=st.sampled_from([False, False, True]))
    def append(self, samples: int, last: bool) -> None:
        self.engine.append(self.rng.choice(self.listening()), self.rng.randbytes(2 * samples), last=last)

    def end(self) -> None:
        for rid in self.listening():
            self.engine.append(rid, b"", last=True)
        super().end()


TestStreamsInAnyOrder = StreamMachine.TestCase
TestStreamsInAnyOrder.settings = many(60)
