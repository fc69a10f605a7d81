"""What the metrics page says after requests have passed."""

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from stentor.engine.client.outages import add_counters
from stentor.protocols.ipc.actors import Stats
from stentor.protocols.ipc.deltas import Finish, PromptProcessed, Text
from stentor.protocols.ipc.histograms import STEP_TOKENS, Counts
from stentor.server.observability.metrics import Metrics
from stentor.tests.fakes import FakeEngine, fake_state
from stentor.tests.server.harness import CHAT, HELLO, in_memory

pytestmark = pytest.mark.anyio


def samples(page: str) -> dict[str, float]:
    """Sample name (with the reason, where there is one) → value; every sample names the model."""
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            assert sample.labels["model_name"] == "fake/model"
            extra = [value for name, value in sorted(sample.labels.items()) if name not in ("model_name", "le")]
            if "le" not in sample.labels:
                found["/".join([sample.name.removeprefix("stentor:"), *extra])] = sample.value
    return found


async def test_the_page_parses_and_counts_what_was_served() -> None:
    engine = FakeEngine()
    engine.cached_tokens = 4
    async with in_memory(fake_state(engine)) as client:
        body = {"messages": HELLO, "max_tokens": 10, "n": 2, "model": "fake"}
        usage = (await client.post(CHAT, json=body)).json()["usage"]
        await client.post(CHAT, json={**body, "stop": "l", "stream": True, "n": 1})
        response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    seen = samples(response.text)
    assert seen["num_requests_running"] == 1
    assert seen["num_requests_waiting"] == 2
    assert seen["kv_cache_usage_perc"] == 0.5
    assert seen["num_preemptions_total"] == 3
    assert seen["prefix_cache_queries_total"] == 40
    assert seen["prefix_cache_hits_total"] == 30
    assert seen["prompt_tokens_total"] == 2 * usage["prompt_tokens"]
    assert seen["prompt_tokens_cached_total"] == 8
    assert seen["generation_tokens_total"] == 20 + 4
    assert seen["request_success_total/length"] == 2
    assert seen["request_success_total/stop"] == 1
    assert seen["request_success_total/abort"] == 0
    for histogram in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds"):
        assert seen[f"{histogram}_count"] == 2
    assert seen["request_params_n_sum"] == 3
    assert seen["request_params_max_tokens_sum"] == 20
    assert seen["request_generation_tokens_sum"] == 24
    assert seen["request_max_num_generation_tokens_sum"] == 10 + 4
    assert seen["request_prefill_kv_computed_tokens_sum"] == 2 * usage["prompt_tokens"] - 8
    assert seen["inter_token_latency_seconds_count"] > 2


def test_a_request_adds_its_times_once() -> None:
    engine = FakeEngine()
    metrics = Metrics("fake/model", engine)
    tracker = metrics.requests.track(7, 2, 5, arrival=0.0)
    tracker.batch([PromptProcessed(3, None, 0.5, 0.25), Text(0, "a", [1], None)])
    tracker.batch([Text(0, "b", [2, 3], None), Finish(0, "stop", None, None)])
    tracker.close()
    seen = samples(metrics.render().decode())
    assert seen["request_queue_time_seconds_sum"] == 0.5
    assert seen["request_prefill_time_seconds_sum"] == 0.25
    assert seen["request_inference_time_seconds_sum"] >= 0.25
    assert seen["request_prompt_tokens_sum"] == 7
    assert seen["prompt_tokens_cached_total"] == 3
    assert seen["generation_tokens_total"] == 3
    assert seen["request_success_total/stop"] == 1
    assert seen["request_success_total/abort"] == 1, "the other choice never ended"


def test_what_was_lost_and_came_back_is_counted() -> None:
    engine = FakeEngine()
    engine.engine_restarts = 2
    engine.stats = Stats(1, 2, 0.5, 3, 40, 30, 5, 32, worker_restarts=4, recovered=9, watchdog_kills=1, poisoned=6)
    metrics = Metrics("fake/model", engine)
    metrics.recovery["fake/model"]["worker"].observe(0.25)
    metrics.recovery["fake/model"]["worker"].observe(0.5)
    seen = samples(metrics.render().decode())
    assert seen["engine_restarts_total"] == 2
    assert seen["worker_restarts_total"] == 4
    assert seen["recovered_requests_total"] == 9
    assert seen["watchdog_kills_total"] == 1
    assert seen["poisoned_requests_total"] == 6
    assert seen["recovery_seconds_sum/worker"] == 0.75
    assert seen["recovery_seconds_count/engine"] == 0


def test_what_comes_from_host_memory_is_told_under_the_names_of_vllm() -> None:
    engine = FakeEngine()
    found = Stats(1, 2, 0.5, 3, 40, 25, 5, 32, prompt_computed=5, host_queries=15, host_hits=10, host_usage=0.25)
    engine.stats = msgspec.structs.replace(found, host_stored_bytes=9000, host_loaded_bytes=4000)
    seen = samples(Metrics("fake/model", engine).render().decode())
    assert seen["external_prefix_cache_queries_total"] == 15
    assert seen["external_prefix_cache_hits_total"] == 10
    assert seen["kv_offload_store_bytes_total"] == 9000
    assert seen["kv_offload_load_bytes_total"] == 4000
    assert seen["kv_offload_cpu_cache_usage_perc"] == 0.25
    sources = {"local_compute": 5, "local_cache_hit": 25, "external_kv_transfer": 10}
    assert {source: seen[f"prompt_tokens_by_source_total/{source}"] for source in sources} == sources


def test_the_engine_s_histograms_are_told_and_go_on_across_engines() -> None:
    engine = FakeEngine()
    lost, now = Counts(STEP_TOKENS), Counts(STEP_TOKENS)
    for tokens in (1, 9):
        lost.observe(tokens)
    now.observe(20000)
    first = Stats(1, 2, 0.5, 3, 40, 30, 5, 32, step_tokens=lost.so_far())
    second = msgspec.structs.replace(first, step_tokens=now.so_far())
    assert "iteration_tokens_total_sum" in samples(Metrics("fake/model", engine).render().decode())
    engine.stats = add_counters(second, first, Stats(0, 0, 0.0, 0, 0, 0, 0, 0))
    page = Metrics("fake/model", engine).render().decode()
    seen = samples(page)
    assert (seen["iteration_tokens_total_count"], seen["iteration_tokens_total_sum"]) == (3, 20010)
    assert 'stentor:iteration_tokens_total_bucket{le="8.0",model_name="fake/model"} 1.0' in page
    assert 'stentor:iteration_tokens_total_bucket{le="16.0",model_name="fake/model"} 2.0' in page
    assert seen["request_num_preemptions_count"] == 0


def test_who_waits_is_told_by_what_is_lacked() -> None:
    engine = FakeEngine()
    engine.stats = Stats(1, 4, 0.5, 0, 0, 0, 5, 0, waiting_for={"blocks": 3, "transfer": 1})
    seen = samples(Metrics("fake/model", engine).render().decode())
    waiting = {
        key.split("/")[1]: n for key, n in seen.items() if key.startswith("num_requests_waiting_by_reason") and n
    }
    assert waiting == {"blocks": 3, "transfer": 1}


def test_two_servers_do_not_share_a_registry() -> None:
    engine = FakeEngine()
    first, second = Metrics("fake/model", engine), Metrics("fake/model", engine)
    first.requests.prompt_tokens.inc(5)
    assert samples(second.render().decode())["prompt_tokens_total"] == 0
