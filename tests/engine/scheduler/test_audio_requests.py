"""Requests that hear: places for what is encoded, prompts that are computed whole, what comes back with them."""

import random
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from stentor.engine.core.sequence import SequenceState
from stentor.protocols.ipc.audio import MAX_WINDOW_BYTES, Alignment, TokenRules
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import StepPlan
from stentor.tests.engine.fake_engine import Engine, windows_of_audio
from stentor.tests.engine.media import Audio
from stentor.tests.engine.scheduler.any_order import SEEDS, AnyOrder, many, random_prompt, sizes

RULES = TokenRules([3], [4], 100, 50, 2)


def window(
    number: int, *, no_speech: tuple[int, int] | None = None, align: Alignment | None = None, rules: bool = False
) -> Audio:
    pcm = number.to_bytes(2, "little") * 8
    return Audio(pcm, blake2b(pcm, digest_size=16).digest(), RULES if rules else None, no_speech, align)


def transcription_engine(**changes: int) -> Engine:
    return Engine(**{"encoder_slots": 3, "max_encodings": 2, **changes})  # type: ignore[arg-type]


def encoded(plans: list[StepPlan]) -> list[list[int]]:
    return [[each.encoder_slot for each in plan.encode] for plan in plans]


def test_what_two_requests_hear_is_encoded_once() -> None:
    engine = transcription_engine()
    engine.submit([5, 6], audio=window(1))
    engine.submit([5, 7], audio=window(1))
    engine.drain()
    engine.check_clients()
    assert encoded(engine.plans)[0] == [0]
    assert sum(map(len, encoded(engine.plans))) == 1
    later = engine.submit([5, 7, 8], audio=window(1))
    engine.drain()
    engine.check_clients()
    assert sum(map(len, encoded(engine.plans))) == 1, "it was still there"
    assert engine.clients[later].finished[0].reason == "length"


def test_a_step_encodes_so_many_windows_and_fewer_beside_rows_that_decode() -> None:
    engine = transcription_engine(encoder_slots=8, max_num_seqs=8, max_encodings=3, max_mixed_encodings=1)
    for number in range(6):
        engine.submit([5, number], audio=window(number), max_tokens=6)
    engine.drain()
    engine.check_clients()
    assert [len(plan.encode) for plan in engine.plans[:5]] == [3, 1, 1, 1, 0]
    assert all(len(plan.rows) >= 3 for plan in engine.plans[:5]), "those who decode were not held up"


def test_a_step_encodes_fewer_windows_while_others_wait_for_the_device() -> None:
    engine = transcription_engine(encoder_slots=8, max_num_seqs=8, max_encodings=3, max_mixed_encodings=1)
    engine.crowded = True
    for number in range(3):
        engine.submit([5, number], audio=window(number), max_tokens=6)
    engine.drain()
    engine.check_clients()
    assert [len(plan.encode) for plan in engine.plans[:4]] == [1, 1, 1, 0]


def test_who_finds_every_place_held_waits_for_one() -> None:
    engine = transcription_engine(encoder_slots=2, max_num_seqs=4)
    for number in range(4):
        engine.submit([5, number], audio=window(number), max_tokens=3 + number)
    engine.step()
    assert engine.scheduler.stats().running == 2
    engine.drain()
    engine.check_clients()
    assert sum(map(len, encoded(engine.plans))) == 4


def test_the_place_that_was_used_longest_ago_goes_first() -> None:
    engine = transcription_engine(encoder_slots=2)
    for number in (1, 2, 1, 3, 1, 2):
        engine.submit([5], audio=window(number))
        engine.drain()
    used = [place for places in encoded(engine.plans) for place in places]
    assert used == [0, 1, 1, 1], "1 stayed, 2 and 3 took turns"


def test_prefixes_are_shared_by_those_who_hear_the_same() -> None:
    engine = transcription_engine(num_blocks=32)
    prompt = [7] * 12
    for audio in (window(1), window(2), window(1)):
        rid = engine.submit(prompt, audio=audio)
        engine.drain()
        expected = 11 if rid == 2 else 0
        assert engine.clients[rid].prompts[0].cached_tokens == expected
    engine.check_clients()


def test_the_position_whose_silence_is_asked_for_is_computed_though_the_prefix_is_known() -> None:
    engine = transcription_engine(num_blocks=32)
    for position, cached in ((9, 0), (9, 9), (3, 3), (4, 4)):
        rid = engine.submit([7] * 12, audio=window(1, no_speech=(position, 1)))
        engine.drain()
        assert engine.clients[rid].prompts[0].cached_tokens == cached
    engine.check_clients()


def test_an_alignment_enters_whole_where_others_come_in_chunks() -> None:
    engine = transcription_engine(
        num_blocks=64, max_num_batched_tokens=40, max_mixed_prefill_tokens=3, max_prefill_chunk=5, max_num_seqs=4
    )
    engine.submit([5, 6], audio=window(1), max_tokens=12)
    engine.step()
    aligned = engine.submit([8] * 30, audio=window(2, align=Alignment(4, 900)), max_tokens=1)
    chunked = engine.submit([9] * 30, audio=window(3), max_tokens=1)
    engine.drain()
    engine.check_clients()
    counts = [sorted(row.count for row in plan.rows) for plan in engine.plans]
    assert any(30 in each and 1 in each for each in counts), "beside a row that decodes"
    assert max(count for each in counts for count in each if count != 30) <= 5
    heard = engine.clients[aligned].prompts[0].alignment
    assert heard is not None
    assert (len(heard.times), len(heard.probabilities)) == (27, 26)
    assert engine.clients[chunked].prompts[0].alignment is None


def test_an_alignment_waits_for_a_step_with_room_and_nobody_overtakes_it() -> None:
    engine = transcription_engine(
        num_blocks=64, max_num_batched_tokens=14, max_num_seqs=6, encoder_slots=6, max_encodings=6
    )
    for number in range(4):
        engine.submit([5, number], audio=window(number), max_tokens=4 + number)
    engine.step()
    aligned = engine.submit([8] * 12, audio=window(9, align=Alignment(4, 900)), max_tokens=1)
    later = engine.submit([8], audio=window(9), max_tokens=1)
    engine.drain()
    engine.check_clients()
    first = {rid: next(i for i, plan in enumerate(engine.plans) for new in plan.new if new.tokens == tokens)
             for rid, tokens in ((aligned, [8] * 12), (later, [8]))}  # fmt: skip
    assert first[aligned] <= first[later]
    assert first[aligned] > 2


def test_a_row_that_was_preempted_finds_what_it_hears_again() -> None:
    engine = transcription_engine(num_blocks=6, block_size=2, max_num_seqs=3, encoder_slots=3, max_encodings=3)
    for number in range(3):
        engine.submit([5, number], audio=window(number, no_speech=(0, 1)), max_tokens=8)
    engine.drain()
    engine.check_clients()
    assert engine.scheduler.stats().preemptions > 0
    assert sum(map(len, encoded(engine.plans))) == 3


def test_after_a_death_of_the_worker_what_ran_is_encoded_again() -> None:
    engine = transcription_engine()
    rid = engine.submit([5, 6], audio=window(1, no_speech=(1, 0)), max_tokens=6)
    for _ in range(3):
        engine.step()
    assert engine.clients[rid].prompts
    engine.kill_worker()
    engine.drain()
    engine.check_clients()
    assert encoded(engine.plans)[0] == [0]
    assert sum(map(len, encoded(engine.plans))) == 2
    again = engine.plans[-1].new or next(plan.new for plan in reversed(engine.plans) if plan.new)
    assert again[0].probe is None, "what has been told is not asked for again"


def test_an_aborted_row_gives_its_place_back() -> None:
    engine = transcription_engine(encoder_slots=1)
    first = engine.submit([5, 6], audio=window(1), max_tokens=20)
    second = engine.submit([5, 6], audio=window(2), max_tokens=2)
    engine.step()
    engine.abort(first)
    engine.drain()
    engine.check_clients()
    assert engine.clients[second].finished[0].reason == "length"


def test_a_worker_with_room_for_fewer_goes_on() -> None:
    engine = transcription_engine(encoder_slots=2)
    for number in range(3):
        engine.submit([5, number], audio=window(number), max_tokens=6)
    engine.step()
    engine.restart_with(windows_of_audio(1))
    engine.step()
    assert engine.scheduler.stats().running == 1
    engine.drain()
    engine.check_clients()


def test_what_is_brought_is_released_once_no_step_reads_it() -> None:
    engine = transcription_engine()
    rid = engine.submit([5, 6], audio=window(1))
    assert engine.plan()
    engine.abort(rid)
    assert engine.shelf.store.arena.used, "the step in flight reads it"
    engine.deliver()
    assert not engine.shelf.store.arena.used
    engine.submit([5, 6], audio=window(1))
    engine.abort(1)
    assert not engine.shelf.store.arena.used, "nobody has read it"


@pytest.mark.parametrize(
    ("audio", "changes", "message"),
    [
        (None, {}, "needs audio"),
        (window(1), {"seeds": [1, 2]}, "one sequence, not 2"),
        (Audio(b"", b"0" * 16), {}, "0 bytes"),
        (Audio(b"123", b"0" * 16), {}, "whole samples"),
        (Audio(bytes(MAX_WINDOW_BYTES + 2), b"0" * 16), {}, "960002 bytes"),
        (window(1, no_speech=(2, 0)), {}, "position 2 of a prompt of 2"),
        (window(1, align=Alignment(0, 9)), {"max_tokens": 1}, "nothing to align"),
        (window(1, align=Alignment(2, 9)), {"max_tokens": 1}, "nothing to align"),
        (window(1, align=Alignment(1, 9)), {"max_tokens": 2}, "draws one token"),
        (window(1, align=Alignment(1, 9)), {"prompt": [5] * 16, "max_tokens": 1}, "does not fit into a step of 16"),
    ],
)
def test_what_cannot_be_heard_is_refused(audio: Audio | None, changes: dict[str, object], message: str) -> None:
    engine = transcription_engine()
    given: dict[str, object] = {"prompt": [5, 6], **changes}
    rid = engine.submit(audio=audio, **given)  # type: ignore[arg-type]
    (ended,) = {each.message for each in engine.clients[rid].finished.values()}
    assert ended is not None
    assert message in ended


def test_a_model_that_does_not_hear_takes_no_audio() -> None:
    engine = Engine()
    rid = engine.submit([5, 6], audio=window(1))
    assert engine.clients[rid].finished[0].message == "the model reads tokens alone: it takes no audio or other media"


def test_a_worker_that_does_not_say_what_was_asked_ends_the_request() -> None:
    engine = transcription_engine()
    rid = engine.submit([5, 6], audio=window(1, no_speech=(1, 0)))
    engine.plan()
    engine.results[0].alignments.clear()
    engine.deliver()
    assert engine.clients[rid].finished[0].message == "the worker returned no probability of silence"


def submit_random(engine: Engine, rng: random.Random) -> int:
    prompt = [*random_prompt(rng), rng.randrange(12)]
    position = rng.randrange(len(prompt))
    align = Alignment(rng.randrange(1, len(prompt)), 9) if rng.random() < 0.3 else None
    no_speech = (position, 1) if rng.random() < 0.5 else None
    params = SamplingParams(
        max_tokens=rng.choice([0, 1]) if align else rng.choice([0, 1, 2, 5, 9, 20]),
        eos_token_ids=rng.choice([(), (0,), (0, 1)]),
        logprobs=rng.choice([None, 0]),
        prompt_logprobs=rng.choice([None, None, None, 0]),
    )
    audio = window(rng.randrange(6), no_speech=no_speech, align=align, rules=rng.random() < 0.5)
    return engine.submit(prompt, params, seeds=[rng.getrandbits(64)], priority=rng.choice([0, 0, -3, 7]), audio=audio)


class TranscriptionMachine(AnyOrder):
    @initialize(
        sizes=sizes(
            st.integers(28, 64),
            # what is aligned is computed whole
            max_num_batched_tokens=st.sampled_from([17, 24, 64]),
            encoder_slots=st.integers(1, 5),
            max_encodings=st.integers(1, 3),
        ),
        seed=SEEDS,
    )
    def start(self, sizes: dict[str, Any], seed: int) -> None:
        self.begin(seed, max_model_len=40, **sizes)

    @rule()
    def submit(self) -> None:
        submit_random(self.engine, self.rng)

    @rule()
    def kill_worker(self) -> None:
        assert self.engine.cross is not None
        self.engine.restart_with(self.engine.cross)

    @rule(windows=st.integers(1, 5))
    def kill_worker_and_start_one_of_another_size(self, windows: int) -> None:
        self.engine.restart_with(windows_of_audio(windows))

    def end(self) -> None:
        super().end()
        assert not self.engine.scheduler._kv_cache.encoder_cache.num_holders


TestTranscriptionInAnyOrder = TranscriptionMachine.TestCase
TestTranscriptionInAnyOrder.settings = many(60)


def test_a_sequence_without_a_row_has_no_place() -> None:
    engine = transcription_engine()
    rid = engine.submit([5, 6], audio=window(1), max_tokens=9)
    (sequence,) = engine.scheduler._output.requests[rid].sequences
    assert not sequence.spans
    engine.step()
    assert sequence.spans
    engine.kill_worker()
    assert (sequence.spans, sequence.state) == ([], SequenceState.WAITING)
