"""Requests handed over from an engine that is gone: they go on where they were."""

from typing import Any

import msgspec
import pytest

from stentor.engine.channel.pieces import PromptParts
from stentor.engine.core.scheduler import Scheduler
from stentor.protocols.ipc.actors import Finished, Resumed, Submit, TokensBatch
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.fake_engine import Engine
from stentor.tests.engine.fake_model import alone, token_logprobs
from stentor.tests.engine.fake_worker import FakeWorker
from stentor.tests.engine.schedulers import CONFIG, ready_of

MAX_MODEL_LEN = 32
SIZES: dict[str, Any] = {"num_blocks": 32, "block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 8}
PROMPT = [1, 2, 3, 4, 5, 6]


class Fresh:
    """A scheduler and worker that have seen nothing."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(ready_of(**SIZES, max_model_len=MAX_MODEL_LEN), CONFIG)
        self.worker = FakeWorker(**SIZES)
        self.batch = TokensBatch([], [], [])

    def submit(self, submit: Submit, resumed: Resumed) -> TokensBatch | None:
        return self.scheduler.submit(msgspec.structs.replace(submit, resumed=resumed))

    def drain(self) -> None:
        while (plan := self.scheduler.plan(1.0)) is not None:
            result = self.worker.run(plan)
            assert result is not None
            more = self.scheduler.complete(result, 1.0)
            for mine, theirs in zip(_parts(self.batch), _parts(more), strict=True):
                mine.extend(theirs)
            self.scheduler.check_integrity()
        assert not self.scheduler.has_work
        assert self.scheduler.stats().free_blocks == SIZES["num_blocks"]

    def tokens(self, index: int = 0) -> list[int]:
        return [token for gained in self.batch.tokens if gained.index == index for token in gained.tokens]


def _parts(batch: TokensBatch) -> tuple[list[object], ...]:
    return batch.prompts, batch.tokens, batch.finished, batch.parts  # type: ignore[return-value]


def submit(seeds: tuple[int, ...] = (7,), **params: object) -> Submit:
    fields = {"max_tokens": 10, **params}
    return Submit(4, PROMPT, SamplingParams(**fields), list(seeds), 0, "", 0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("delivered", range(1, 10))
def test_sampling_goes_on_at_the_next_output_and_tokens_that_were_delivered_count(delivered: int) -> None:
    request = submit(min_tokens=5, eos_token_ids=tuple(range(11)))
    expected = alone(request, 0, MAX_MODEL_LEN).tokens
    delivered = min(delivered, len(expected) - 1)
    fresh = Fresh()
    assert fresh.submit(request, Resumed([expected[:delivered]], [], True)) is None
    fresh.drain()
    assert expected[:delivered] + fresh.tokens() == expected
    assert [end.reason for end in fresh.batch.finished] == ["stop"]
    assert fresh.batch.prompts == [], "the prompt is not done twice"


def test_sequences_that_have_ended_stay_ended() -> None:
    request = submit(seeds=(1, 2, 3))
    whole = [alone(request, index, MAX_MODEL_LEN).tokens for index in range(3)]
    fresh = Fresh()
    assert fresh.submit(request, Resumed([whole[0][:2], whole[1], whole[2][:5]], [1], True)) is None
    fresh.drain()
    assert [fresh.tokens(0), fresh.tokens(1), fresh.tokens(2)] == [whole[0][2:], [], whole[2][5:]]
    assert sorted(end.index for end in fresh.batch.finished) == [0, 2]


def test_a_request_whose_every_sequence_has_ended_leaves_nothing() -> None:
    fresh = Fresh()
    assert fresh.submit(submit(seeds=(1, 2)), Resumed([[1], [2]], [0, 1], True)) is None
    assert not fresh.scheduler.has_work
    assert fresh.scheduler.plan(0.0) is None


@pytest.mark.parametrize(
    ("params", "outputs", "end"),
    [
        ({"max_tokens": 3}, [1, 2, 3], Finished(4, 0, "length", None, None)),
        ({"max_tokens": 9, "stop_token_ids": (11,)}, [1, 11], Finished(4, 0, "stop", 11, None)),
        ({"max_tokens": 9, "eos_token_ids": (11,)}, [1, 11], Finished(4, 0, "stop", None, None)),
        ({"max_tokens": 200}, [1] * (MAX_MODEL_LEN - len(PROMPT)), Finished(4, 0, "length", None, None)),
        ({"max_tokens": 0, "prompt_logprobs": 0}, [], Finished(4, 0, "length", None, None)),
    ],
)
def test_what_had_reached_its_end_when_the_engine_died_ends_at_once(
    params: dict[str, object], outputs: list[int], end: Finished
) -> None:
    fresh = Fresh()
    assert fresh.submit(submit((7,), **params), Resumed([outputs], [], True)) == TokensBatch([], [], [end])
    assert not fresh.scheduler.has_work
    fresh.scheduler.check_integrity()


def test_a_stop_below_min_tokens_is_no_end() -> None:
    request = submit(max_tokens=9, min_tokens=5, stop_token_ids=(11,))
    fresh = Fresh()
    assert fresh.submit(request, Resumed([[1, 11]], [], True)) is None
    fresh.drain()
    assert len(fresh.tokens()) >= 3


def test_a_prompt_that_was_not_done_is_done_again_with_its_log_probabilities() -> None:
    request = submit(seeds=(1, 2, 3), prompt_logprobs=0)
    fresh = Fresh()
    fresh.submit(request, Resumed([[], [], []], [0], False))
    fresh.drain()
    parts = PromptParts()
    for part in fresh.batch.parts:
        parts.add(part)
    (prompt,) = map(parts.joined, fresh.batch.prompts)
    assert prompt.logprobs == [None, *(token_logprobs(PROMPT, place) for place in range(1, len(PROMPT)))]
    assert [fresh.tokens(0), fresh.tokens(1)] == [[], alone(request, 1, MAX_MODEL_LEN).tokens]
    assert sorted(end.index for end in fresh.batch.finished) == [1, 2]


def test_the_log_probabilities_of_a_prompt_that_was_done_are_not_computed_again() -> None:
    request = submit(prompt_logprobs=0)
    expected = alone(request, 0, MAX_MODEL_LEN).tokens
    fresh = Fresh()
    fresh.submit(request, Resumed([expected[:1]], [], True))
    plan = fresh.scheduler.plan(0.0)
    assert plan is not None
    assert plan.new[0].params.prompt_logprobs is None
    assert plan.new[0].tokens == [*PROMPT, expected[0]]
    assert plan.new[0].prompt_len == len(PROMPT)


@pytest.mark.parametrize(
    ("resumed", "why"),
    [
        (Resumed([[1]], [], True), "has 2 sequences"),
        (Resumed([[1], [2]], [2], True), "has 2 sequences"),
        (Resumed([[1], [-2]], [], True), "token id outside"),
    ],
)
def test_what_cannot_have_been_is_refused(resumed: Resumed, why: str) -> None:
    fresh = Fresh()
    batch = fresh.submit(submit(seeds=(1, 2)), resumed)
    assert batch is not None
    assert {end.index for end in batch.finished} == {0, 1}
    assert all(end.reason == "error" and why in str(end.message) for end in batch.finished)
    assert not fresh.scheduler.has_work


def test_a_request_that_does_not_fit_the_new_engine_is_refused_for_the_sequences_that_live() -> None:
    fresh = Fresh()
    long = msgspec.structs.replace(submit(seeds=(1, 2)), prompt=[1] * 40)
    batch = fresh.submit(long, Resumed([[], []], [0], False))
    assert batch is not None
    assert [end.index for end in batch.finished] == [1]


def test_engines_that_die_one_after_the_other_cost_nobody_a_token() -> None:
    engine = Engine(num_blocks=24, max_num_seqs=3, max_num_batched_tokens=8)
    for seed in range(8):
        engine.submit([seed] * 9, max_tokens=12, seeds=[seed, seed + 100])
    for _ in range(30):
        for _ in range(3):
            engine.step()
        engine.kill_engine()
    engine.drain()
    engine.check_clients()
