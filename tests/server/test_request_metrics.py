"""``--enable-per-request-metrics``: answers say how long they took."""

from typing import Any

import pytest

import stentor
from stentor.tests.fakes import FakeEngine, fake_state
from stentor.tests.server.harness import CHAT, COMPLETIONS, HELLO, chunks_of, in_memory

pytestmark = pytest.mark.anyio

BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO, "max_tokens": 4},
    COMPLETIONS: {"prompt": "a", "max_tokens": 4},
}
DELAY = 0.005
"""Seconds between the tokens of the engine."""


async def _answer(path: str, *, enabled: bool = True, **fields: Any) -> dict[str, Any]:
    """The answer, or the last chunk of a stream; no other chunk may have metrics."""
    engine = FakeEngine(delay=DELAY)
    async with in_memory(fake_state(engine, per_request_metrics=enabled)) as client:
        response = await client.post(path, json={**BODIES[path], **fields})
    assert response.status_code == 200, response.text
    if not fields.get("stream"):
        answer: dict[str, Any] = response.json()
        return answer
    *others, last = chunks_of(response.text)
    assert not any("metrics" in chunk for chunk in others)
    return last


def _check(metrics: dict[str, float], tokens: int) -> None:
    assert (metrics["queue_time_ms"], metrics["time_to_first_token_ms"]) == (500, 250), "of the fake engine"
    assert metrics["generation_time_ms"] >= 1000 * DELAY * (tokens - 1)
    assert metrics["mean_itl_ms"] == pytest.approx(metrics["generation_time_ms"] / (tokens - 1))
    assert metrics["tokens_per_second"] == pytest.approx(1000 * tokens / (250 + metrics["generation_time_ms"]))


@pytest.mark.parametrize("path", BODIES)
async def test_an_answer_has_the_times_of_its_prompt_and_tokens(path: str) -> None:
    _check((await _answer(path))["metrics"], 4)


@pytest.mark.parametrize("path", BODIES)
async def test_a_stream_has_them_beside_its_usage(path: str) -> None:
    last = await _answer(path, stream=True, stream_options={"include_usage": True})
    assert last["usage"]["completion_tokens"] == 4
    _check(last["metrics"], 4)


@pytest.mark.parametrize("path", BODIES)
async def test_one_token_has_no_time_between_tokens(path: str) -> None:
    assert "mean_itl_ms" not in (await _answer(path, max_tokens=1))["metrics"]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_choices_and_prompts_that_share_a_request_have_none(path: str, stream: bool) -> None:
    options: dict[str, Any] = {"stream": stream, "stream_options": {"include_usage": True}} if stream else {}
    assert "metrics" not in await _answer(path, n=2, **options)
    if path == COMPLETIONS:
        assert "metrics" not in await _answer(path, prompt=["a", "b"], **options)
    assert "metrics" not in await _answer(path, enabled=False, **options)


@pytest.mark.parametrize("path", BODIES)
async def test_a_client_of_llama_cpp_may_have_the_times_of_each_answer(path: str) -> None:
    whole = await _answer(path, enabled=False, timings_per_token=True)
    timings = whole["timings"]
    assert (timings["prompt_ms"], timings["predicted_n"]) == (250, 4)
    assert timings["cache_n"] + timings["prompt_n"] == whole["usage"]["prompt_tokens"]
    assert timings["predicted_ms"] >= 1000 * DELAY * 3
    assert "timings" not in await _answer(path, enabled=False)
    assert "timings" not in await _answer(path, enabled=False, timings_per_token=True, n=2)


@pytest.mark.parametrize("path", BODIES)
async def test_each_chunk_of_a_stream_has_the_times_so_far(path: str) -> None:
    async with in_memory(fake_state(FakeEngine(delay=DELAY))) as client:
        body = {**BODIES[path], "stream": True, "timings_per_token": True}
        chunks = chunks_of((await client.post(path, json=body)).text)
    counts = [chunk["timings"]["predicted_n"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 4


@pytest.mark.parametrize("path", BODIES)
async def test_answers_and_chunks_name_the_program_and_the_model_by_one_fingerprint(path: str) -> None:
    whole = await _answer(path, enabled=False)
    async with in_memory(fake_state()) as client:
        chunks = chunks_of((await client.post(path, json={**BODIES[path], "stream": True})).text)
    assert whole["system_fingerprint"].startswith(f"stentor-{stentor.__version__}-")
    assert {chunk["system_fingerprint"] for chunk in chunks} == {whole["system_fingerprint"]}
