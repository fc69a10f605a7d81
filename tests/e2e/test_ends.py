"""How a server ends when it is told to, and when it cannot go on: what clients see, and the exit code."""

import json
import os
import signal
import subprocess
import threading
from pathlib import Path

import httpx
import pytest

from stentor.loadtest.processes import alive, tree
from stentor.loadtest.server_process import ServerProcess
from stentor.tests.e2e.made_up import ECHO, describe
from stentor.tests.e2e.processes import below, eventually
from stentor.tests.support.metrics import metric

SECONDS = 60
"""Within which all that is waited for comes about, on a machine that is busy with other tests."""
ENDLESS = {"prompt": [5], "max_tokens": 8000, "ignore_eos": True}


class Asker(threading.Thread):
    """One request, read to its end."""

    def __init__(self, server: ServerProcess, **fields: object) -> None:
        super().__init__(daemon=True)
        self._url = f"http://127.0.0.1:{server.port}/v1/completions"
        self._body = {**ENDLESS, **fields}
        self.begun = threading.Event()
        self.status = 0
        self.text = ""
        self.start()

    def run(self) -> None:
        with httpx.stream("POST", self._url, json=self._body, timeout=60) as answer:
            self.status = answer.status_code
            for piece in answer.iter_text():
                self.text += piece
                self.begun.set()

    @property
    def events(self) -> list[str]:
        self.join(SECONDS)
        assert not self.is_alive(), "the request has no end"
        return [line.removeprefix("data: ") for line in self.text.splitlines() if line.startswith("data: ")]


def _get(server: ServerProcess, path: str) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{server.port}{path}", timeout=SECONDS)


def _running(server: ServerProcess, count: int) -> bool:
    return metric(server.port, "num_requests_running") == count


def test_a_drained_server_ends_with_0(tmp_path: Path) -> None:
    with ServerProcess(describe(tmp_path), ECHO) as server:
        processes = tree(server.pid)
        stream = Asker(server, stream=True, max_tokens=100)
        assert stream.begun.wait(SECONDS)
        (worker,) = below(server.pid, "worker")
        os.kill(worker, signal.SIGSTOP)  # it does not end before it has been looked at
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as client:
            client.get("/ping")
            os.kill(server.pid, signal.SIGTERM)
            eventually(lambda: _get(server, "/health").status_code == 503, SECONDS, "the server drains")
            refused = client.post("/v1/completions", json=ENDLESS)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
            assert refused.headers["connection"] == "close"
            assert int(refused.headers["retry-after"]) >= 1
            assert client.get("/ping").status_code == 200
        os.kill(worker, signal.SIGCONT)
        assert stream.events[-1] == "[DONE]"
        assert server.wait(SECONDS) == 0
        eventually(lambda: not any(map(alive, processes)), SECONDS, "no process is left")


@pytest.mark.proof
def test_what_does_not_end_in_time_is_told_so_and_the_code_names_the_signal(tmp_path: Path) -> None:
    with ServerProcess([*describe(tmp_path), "--shutdown-timeout", "0.5"]) as server:
        stream, whole = Asker(server, stream=True), Asker(server)
        url = f"http://127.0.0.1:{server.port}/v1/completions"
        with httpx.stream(
            "POST", url, json={**ENDLESS, "stream": True, "logprobs": 20}, timeout=20
        ):  # and nobody reads
            eventually(lambda: _running(server, 3), SECONDS, "all run")
            os.kill(server.pid, signal.SIGTERM)
            assert json.loads(stream.events[-1])["error"]["code"] == "shutting_down"
            whole.join(SECONDS)
            assert (whole.status, json.loads(whole.text)["error"]["code"]) == (503, "shutting_down")
            assert server.wait(SECONDS) == 143
        assert "3 requests were cut off" in server.output()


@pytest.mark.parametrize(
    ("reported", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.proof)]
)
def test_a_second_signal_ends_at_once_but_not_without_a_word(
    tmp_path: Path, reported: signal.Signals, code: int
) -> None:
    with ServerProcess([*describe(tmp_path), "--shutdown-timeout", "600"], ECHO) as server:
        processes = tree(server.pid)
        stream = Asker(server, stream=True)
        assert stream.begun.wait(SECONDS)
        os.kill(server.pid, reported)
        eventually(lambda: _get(server, "/health").status_code == 503, SECONDS, "the server drains")
        os.kill(server.pid, reported)
        assert server.wait(SECONDS) == code
        assert json.loads(stream.events[-1])["error"]["code"] == "shutting_down"
        eventually(lambda: not any(map(alive, processes)), SECONDS, "no process is left")


def test_where_memory_may_not_grow_the_server_says_so_in_one_line(tmp_path: Path) -> None:
    starting = ServerProcess(describe(tmp_path))
    done = subprocess.run(
        ["prlimit", f"--fsize={1 << 20}", *starting.command], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("stentor: cannot start the engine process: cannot get the ")
    assert "bytes of shared memory that media may take" in line
