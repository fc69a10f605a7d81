"""``GET /v1/stats``: what it tells, and to whom."""

import pytest

from stentor.server.api.ops.stats import percentile
from stentor.server.middleware.access_control import AccessControl
from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.harness import in_memory
from stentor.tests.server.middleware.keyrings import keyring
from stentor.tests.server.realtime.session_fakes import fake_speech, voice_state

pytestmark = pytest.mark.anyio


async def test_the_figures_are_those_of_the_engine_and_of_the_requests_so_far() -> None:
    engine = FakeEngine(answer=says("Yes."))
    async with in_memory(fake_state(engine)) as client:
        before = (await client.get("/v1/stats")).json()
        assert before["time_to_first_token"]["p50"] is None
        asked = {"messages": [{"role": "user", "content": "Is it?"}]}
        assert (await client.post("/v1/chat/completions", json=asked)).status_code == 200
        after = (await client.get("/v1/stats")).json()
    now = engine.stats
    (model,) = after["models"]
    assert model == {
        "model": "fake/model",
        "ready": True,
        "running": now.running,
        "waiting": now.waiting,
        "kv_usage": now.kv_usage,
        "kv_tokens": 64 * 16,
        "prefix_queries": now.prefix_queries,
        "prefix_hits": now.prefix_hits,
        "host_queries": 0,
        "host_hits": 0,
        "host_usage": 0.0,
        "preemptions": now.preemptions,
        "engine_restarts": 0,
        "worker_restarts": 0,
        "recovered": 0,
        "num_drafts": 0,
        "num_accepted_tokens": 0,
    }
    assert after["generation_tokens"] == 5
    assert sum(after["time_to_first_token"]["counts"]) == 1
    assert sum(after["inter_token_latency"]["counts"]) == 4
    assert len(after["inter_token_latency"]["counts"]) == len(after["inter_token_latency"]["bounds"]) + 1
    assert after["memory"]["server"] > 0
    assert after["speech"] is None


async def test_a_speech_model_has_figures_though_it_has_no_engine() -> None:
    async with in_memory(voice_state(FakeEngine(), speech=fake_speech())) as client:
        told = (await client.get("/v1/stats")).json()["speech"]
    assert told == {"model": "fake-voice", "ready": True, "running": 0, "restarts": 0}


async def test_the_figures_want_an_admin_key_where_the_server_has_one() -> None:
    for keys, key, status in (
        (keyring("key"), None, 401),
        (keyring("key"), "key", 200),
        (keyring("key", admin=("root",)), "key", 403),
        (keyring("key", admin=("root",)), "root", 200),
    ):
        async with in_memory(fake_state(access=AccessControl(keys))) as client:
            headers = {"authorization": f"Bearer {key}"} if key else {}
            assert (await client.get("/v1/stats", headers=headers)).status_code == status


@pytest.mark.parametrize(
    ("counts", "share", "seconds"),
    [
        ([0, 0, 0], 0.5, None),
        ([10, 0, 0], 0.5, 0.5),
        ([5, 5, 0], 0.75, 2.0),
        ([0, 0, 4], 0.99, 3.0),
        ([0, 1, 0], 1, 3.0),
    ],
)
def test_a_percentile_is_interpolated_within_its_bucket(counts: list[int], share: float, seconds: float | None) -> None:
    assert percentile([1.0, 3.0], counts, share) == seconds
