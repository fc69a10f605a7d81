"""A real server whose model two workers split."""

import json
import os
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest

from stentor.loadtest.processes import alive, tree
from stentor.loadtest.server_process import ServerProcess
from stentor.tests.e2e.processes import below, eventually
from stentor.tests.e2e.test_dummy_weights import CONFIG

SECONDS = 60.0
TOKENS = 60


def _are_replaced(server: ServerProcess, workers: set[int]) -> bool:
    now = below(server.pid, "worker")
    return len(now) == 2 and not workers & {*now}


def _text(client: openai.OpenAI, kill: int | None = None) -> str:
    """A streamed completion; after ten pieces of it, a process is killed."""
    rules: dict[str, Any] = {"model": "made-up", "max_tokens": TOKENS, "temperature": 0.8, "seed": 5}
    stream = client.completions.create(prompt=[5, 6, 7], **rules, stream=True, extra_body={"ignore_eos": True})
    text = ""
    for number, chunk in enumerate(stream):
        text += "".join(choice.text for choice in chunk.choices)
        if number == 10 and kill is not None:
            os.kill(kill, signal.SIGKILL)
    return text


@pytest.mark.proof  # the same without the server: tests/engine/test_tensor_parallel_processes.py
def test_a_model_split_over_two_workers_is_served_and_a_stream_outlives_each_process(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    arguments = ["--load-format", "dummy", "--device", "cpu", "-tp", "2", "--kv-cache-memory", "8MiB", "--threads", "1"]
    with ServerProcess([str(tmp_path), "--served-model-name", "made-up", "--batch-invariant", *arguments]) as server:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="unused", max_retries=0)
        assert len(below(server.pid, "worker")) == 2
        whole = _text(client)
        assert len(whole.split()) == TOKENS
        for _ in range(2):
            (victim, other) = sorted(below(server.pid, "worker"), reverse=True)
            assert _text(client, victim) == whole
            eventually(partial(_are_replaced, server, {victim, other}), SECONDS, "both end, and two others follow")
        engine, workers = below(server.pid, "engine")[0], below(server.pid, "worker")
        assert _text(client, engine) == whole
        eventually(lambda: not any(map(alive, (engine, *workers))), SECONDS, "the engine's workers end with it")
        processes = tree(server.pid)
        os.kill(server.pid, signal.SIGTERM)
        assert server.wait(SECONDS) == 0
        eventually(lambda: not any(map(alive, processes)), SECONDS, "no process is left")


@pytest.mark.proof  # the refusal itself: tests/parity/test_tensor_parallel.py
def test_a_model_that_is_not_split_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "num_attention_heads": 2, "num_key_value_heads": 1}))
    options = ["--load-format", "dummy", "--device", "cpu", "--tensor-parallel-size", "3"]
    command = ServerProcess([str(tmp_path), *options]).command
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("stentor: ")]
    assert "--tensor-parallel-size 3: 2 query heads do not divide among 3 workers" in line
