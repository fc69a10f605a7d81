"""A real server of three processes: one request's id in the logs of all, its trace, and what the figures say."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stentor.loadtest.server_process import hold_port
from stentor.tests.server.harness import CHAT, COMPLETIONS
from stentor.tests.server.observability.collector import Collector, attributes, collecting

TINY: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "eos_token_id": 2,
}
REQUEST = "the-one-request"
KEY = "a-key-that-nobody-may-see"
SALT = "a-salt-of-the-client"
PROMPT = [211, 212, 213, 214, 215, 216]


@dataclass
class Run:
    collector: Collector
    lines: list[dict[str, Any]] = field(default_factory=list)
    written: str = ""
    page: str = ""
    code: int = -1


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(TINY))
    with collecting() as collector:
        one = Run(collector)
        with _serving(folder, collector.url, folder / "log") as ask:
            body = {"prompt": PROMPT, "max_tokens": 7, "ignore_eos": True, "cache_salt": SALT}
            assert ask(COMPLETIONS, body, {"x-request-id": REQUEST}) == 200
            assert ask("/nowhere", None, {}) == 404
            assert ask(CHAT, {"messages": "?"}, {"authorization": "Bearer wrong"}) == 401
            one.page = ask.page()
        one.code = ask.code
        one.written = (folder / "log").read_text()
        one.lines = [json.loads(line) for line in one.written.splitlines()]
        yield one


class _Asker:
    code = -1

    def __init__(self, address: str) -> None:
        self._address = address

    def __call__(self, path: str, body: object, headers: dict[str, str]) -> int:
        data = None if body is None else json.dumps(body).encode()
        sent = {"authorization": f"Bearer {KEY}", "content-type": "application/json"} | headers
        request = urllib.request.Request(self._address + path, data, sent)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                response.read()
                return int(response.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    def page(self) -> str:
        request = urllib.request.Request(f"{self._address}/metrics", None, {"authorization": f"Bearer {KEY}"})
        with urllib.request.urlopen(request, timeout=30) as response:
            return str(response.read(), "utf-8")


@contextmanager
def _serving(model: Path, collector: str, log: Path) -> Iterator[_Asker]:
    held = hold_port()  # a server of another test would take one that is free again
    port = held.getsockname()[1]
    options = ["--load-format", "dummy", "--threads", "1", "--port", str(port), "--served-model-name", "tiny"]
    options += ["--log-format", "json", "--log-level", "debug", "--access-log", "--otlp-endpoint", collector]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("STENTOR_", "OTEL_"))}
    with log.open("wb") as written:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "stentor.server.main.cli", "serve", str(model), *options],
            env=environment | {"STENTOR_API_KEY": KEY},
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
        )
    ask = _Asker(f"http://127.0.0.1:{port}")
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                if ask("/health", None, {}) == 200:
                    break
            except OSError:
                pass
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield ask
        process.send_signal(signal.SIGTERM)
        ask.code = process.wait(30)
    finally:
        process.kill()
        process.wait()
        held.close()


def test_one_id_stands_in_the_logs_of_server_engine_and_worker(run: Run) -> None:
    about = [line for line in run.lines if line.get("request_id") == REQUEST]
    assert {line["process"] for line in about} == {"server", "engine", "worker"}
    pids = {(line["process"], line["pid"]) for line in run.lines}
    assert len(pids) == 3, "each line tells whose it is"
    (access,) = [line for line in about if line["logger"] == "stentor.access"]
    assert (access["status"], access["prompt_tokens"], access["output_tokens"]) == (200, len(PROMPT), 7)


def test_no_key_no_salt_and_no_prompt_is_in_any_log(run: Run) -> None:
    assert KEY not in run.written
    assert SALT not in run.written
    assert ", ".join(map(str, PROMPT[:3])) not in run.written
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f]", run.written)


def test_the_trace_shows_the_phases_of_the_request_in_order(run: Run) -> None:
    (root,) = [one for one in run.collector.roots() if attributes(one)["stentor.request_id"] == REQUEST]
    seen = attributes(root)
    assert (seen["gen_ai.operation.name"], seen["gen_ai.request.model"]) == ("text_completion", "tiny")
    assert (seen["gen_ai.usage.input_tokens"], seen["gen_ai.usage.output_tokens"]) == (len(PROMPT), 7)
    phases = run.collector.below(root)
    assert [span.name for span in phases] == ["prompt", "queue", "prefill", "decode"]
    moments = [root.start_time_unix_nano, *(span.start_time_unix_nano for span in phases)]
    assert moments == sorted(moments)
    slack = 50_000_000  # the engine's clock readings and the server's are not of one moment
    assert all(span.end_time_unix_nano <= root.end_time_unix_nano + slack for span in phases)
    assert len(run.collector.roots()) == 3, "what waited was sent before the end"


def test_the_figures_know_every_process_and_every_answer(run: Run) -> None:
    for role in ("server", "engine", "worker"):
        found = re.search(
            rf'^stentor:process_resident_memory_bytes{{.*process="{role}"}} (.*)$', run.page, re.MULTILINE
        )
        assert found, role
        assert float(found[1]) > 1 << 20
    for status in (200, 401, 404):
        found = re.search(rf'^stentor:http_responses_total{{.*status="{status}"}} (.*)$', run.page, re.MULTILINE)
        assert found, status
        assert float(found[1]) >= 1
    assert re.search(
        r'^stentor:build_info{model_name="tiny",python="3\.\d+\.\d+",version="[\d.]+"} 1.0$', run.page, re.M
    )


def test_the_server_ended_as_it_was_told(run: Run) -> None:
    assert run.code == 0, run.written
    assert not [line for line in run.lines if line["level"] in ("error", "critical")], run.written
