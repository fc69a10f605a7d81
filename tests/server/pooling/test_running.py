"""A job of many texts: how much of it is with the engine at a time, and what becomes of it when it ends early."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from stentor.engine.model_config.encoders.pooling import TokenVectors
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.ipc.pooling import Pooling, PoolingTask
from stentor.server.common.errors import GenerationFailed, Overloaded
from stentor.server.config.limits import OverloadConfig
from stentor.server.observability.request import RequestRecord
from stentor.server.overload.queue_slots import AdmissionQueue, QueueSlot
from stentor.server.pooling import running
from stentor.server.pooling.reading import Prompt
from stentor.server.pooling.running import FIRST_TEXTS, PoolingJob
from stentor.tests.server.harness import until
from stentor.tests.server.pooling.asking import SPARSE
from stentor.tests.server.pooling.pooler import DIMENSIONS, FakePooler, config, model_of, scores

pytestmark = pytest.mark.anyio


def queue_slot() -> tuple[AdmissionQueue, QueueSlot]:
    queue = AdmissionQueue(OverloadConfig())
    return queue, queue.enter()


def prompts(count: int, length: int = 4) -> list[Prompt]:
    return [Prompt([5 + number % 20] * length) for number in range(count)]


async def test_answers_come_in_order_whatever_is_with_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "WINDOW_TOKENS", 12)
    engine = FakePooler()
    queue, place = queue_slot()
    many = [Prompt([5 + number] * (1 + number % 5)) for number in range(20)]
    found = await PoolingJob(model_of(engine, config()), place).run(many, Pooling("embed"))
    assert [each.columns for each in found] == [DIMENSIONS] * 20
    assert engine.prompts == [prompt.ids for prompt in many]
    alone = FakePooler()
    single = [
        await PoolingJob(model_of(alone, config()), queue_slot()[1]).run([prompt], Pooling("embed")) for prompt in many
    ]
    assert [each for (each,) in single] == found
    assert (queue.requests, queue.tokens) == (0, 0)


async def test_no_more_than_a_window_is_with_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakePooler()
    engine.gate.clear()
    monkeypatch.setattr(running, "WINDOW_TOKENS", 40)
    queue, place = queue_slot()
    job = asyncio.create_task(PoolingJob(model_of(engine, config()), place).run(prompts(100), Pooling("embed")))
    await until(lambda: engine.live == 10)
    await asyncio.sleep(0.02)
    assert engine.live == 10
    assert queue.tokens == 400, "all of it waits, whether or not it is with the engine"
    engine.gate.set()
    assert len(await job) == 100
    monkeypatch.setattr(running, "WINDOW_TEXTS", 3)
    engine.gate.clear()
    job = asyncio.create_task(PoolingJob(model_of(engine, config()), queue_slot()[1]).run(prompts(9), Pooling("embed")))
    await until(lambda: engine.live == 3)
    await asyncio.sleep(0.02)
    assert engine.live == 3
    engine.gate.set()
    await job


async def test_a_text_longer_than_the_window_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "WINDOW_TOKENS", 4)
    found = await PoolingJob(model_of(FakePooler(), config()), queue_slot()[1]).run(
        prompts(3, length=10), Pooling("embed")
    )
    assert len(found) == 3


async def test_what_is_behind_the_first_few_texts_lets_others_go_first() -> None:
    engine = FakePooler()
    await PoolingJob(model_of(engine, config()), queue_slot()[1], priority=2).run(
        prompts(FIRST_TEXTS + 2), Pooling("embed")
    )
    assert engine.priorities == [2] * FIRST_TEXTS + [3, 3]


async def test_who_goes_away_takes_back_what_runs() -> None:
    engine = FakePooler()
    engine.gate.clear()
    record = RequestRecord("id", "POST", "/v1/embeddings")
    job = asyncio.create_task(
        PoolingJob(model_of(engine, config()), queue_slot()[1], record).run(prompts(5), Pooling("embed"))
    )
    await until(lambda: engine.live == 5)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert all(stream.aborted for stream in engine.streams)
    assert record.served[0].reasons == ["abort"]
    assert record.prompt_tokens == 20


async def test_one_text_that_fails_ends_the_job_and_takes_back_the_rest() -> None:
    engine = FakePooler()
    engine.failing = 2
    with pytest.raises(GenerationFailed):
        await PoolingJob(model_of(engine, config()), queue_slot()[1]).run(prompts(6), Pooling("embed"))
    assert [stream.aborted for stream in engine.streams] == [False, False, True, True, True, True]


async def test_a_job_that_others_leave_no_room_for_is_turned_away_before_the_engine_sees_it() -> None:
    engine = FakePooler()
    queue = AdmissionQueue(OverloadConfig(max_queued_tokens=100))
    queue.enter().take(90)
    with pytest.raises(Overloaded):
        await PoolingJob(model_of(engine, config()), queue.enter()).run(prompts(5), Pooling("embed"))
    assert not engine.streams


async def test_the_last_token_alone_counts_only_where_the_model_looks_at_no_other() -> None:
    for pooling, last in (("mean", False), ("lasttoken", True)):
        engine = FakePooler()
        made = config()
        modules = replace(made.modules, pooling=(pooling,))
        await PoolingJob(model_of(engine, replace(made, modules=modules)), queue_slot()[1]).run(
            prompts(1), Pooling("embed")
        )
        assert engine.streams[0].pooling.last is last


async def test_an_answer_that_would_fill_the_memory_is_refused_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "MAX_BYTES", 30)
    monkeypatch.setattr(running, "WINDOW_TEXTS", 2)
    engine = FakePooler()
    many = [Prompt([5 + number, 6 + number]) for number in range(8)]
    with pytest.raises(BadRequest, match="fewer texts") as refused:  # how many weights there are is not known before
        await PoolingJob(model_of(engine, config(sparse=SPARSE)), queue_slot()[1]).run(
            many, Pooling("sparse"), "documents"
        )
    assert refused.value.param == "documents"
    assert 2 < len(engine.streams) < 8
    assert engine.live == 0


@pytest.mark.parametrize(
    ("task", "numbers", "head"),
    [
        ("embed", DIMENSIONS, {}),
        ("token_embed", 4 * DIMENSIONS, {}),
        ("token_embed", 4 * DIMENSIONS, {"vectors": TokenVectors(DIMENSIONS, bias=False)}),
        ("token_embed", 3 * 7, {"vectors": TokenVectors(7, bias=False, skip_first=True)}),
        ("token_classify", 4 * 2, {"score": scores("x", "y")}),
    ],
)
async def test_an_answer_that_is_known_to_fill_the_memory_is_refused_before_it_is_made(
    monkeypatch: pytest.MonkeyPatch, task: PoolingTask, numbers: int, head: dict[str, Any]
) -> None:
    engine = FakePooler(labels=2)
    queue, place = queue_slot()
    monkeypatch.setattr(running, "MAX_BYTES", 4 * numbers * 5 - 1)
    with pytest.raises(BadRequest, match="fewer texts") as refused:
        await PoolingJob(model_of(engine, config(**head)), place).run(prompts(5), Pooling(task))
    assert (refused.value.param, refused.value.code) == ("input", "response_too_large")
    assert not engine.streams
    assert queue.tokens == 0
    if numbers != 3 * 7:  # exactly as much as there may be, of what this engine makes
        monkeypatch.setattr(running, "MAX_BYTES", 4 * numbers * 4)
        assert len(await PoolingJob(model_of(engine, config(**head)), place).run(prompts(4), Pooling(task))) == 4


async def test_a_text_without_the_token_that_a_model_scores_is_refused_before_any_is_computed() -> None:
    engine = FakePooler(labels=2)
    queue, place = queue_slot()
    head = replace(scores("x", "y"), scored_token=2)
    job = PoolingJob(model_of(engine, config(score=head)), place)
    with pytest.raises(BadRequest, match="`documents` holds a text without token 2, which the model scores") as refused:
        await job.run([Prompt([5, 2]), Prompt([5, 6])], Pooling("classify"), "documents")
    assert (refused.value.param, refused.value.code) == ("documents", "invalid_value")
    assert not engine.streams
    assert queue.tokens == 0
    assert len(await job.run([Prompt([5, 2]), Prompt([2, 6])], Pooling("classify"))) == 2
    assert len(await job.run([Prompt([5, 6])], Pooling("embed"))) == 1, "only scores need it"
