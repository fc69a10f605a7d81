"""``stentor doctor``: each thing that is missing is named, with what to do."""

import contextlib
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from stentor.server.main import doctor
from stentor.server.main.commands import run
from stentor.server.main.doctor import Finding, examine
from stentor.server.options.environment import TorchBuild

OFFLINE = {"HF_HUB_OFFLINE": "1"}


@pytest.fixture
def busy() -> Iterator[int]:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        yield taken.getsockname()[1]


def _found(port: int = 1, host: str = "127.0.0.1") -> dict[str, Finding]:
    return {finding.what: finding for finding in examine(OFFLINE, host, port)}


def test_a_port_in_use_is_a_problem_and_the_code_says_so(
    busy: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert run(["doctor", "--port", str(busy)]) == 1
    printed = capsys.readouterr().out
    assert f"PROBLEM  port           cannot listen on 127.0.0.1 port {busy}" in printed
    assert "`ss -ltnp` shows who has it" in printed
    assert _found(host="no-such-host.invalid")["port"].advice == "", "no other program has it"


def test_without_a_compiler_it_warns_of_slow_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = _found()["c++ compiler"]
    assert (found.verdict, found.fact) == ("warning", "none")
    assert "apt install g++" in found.advice
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\necho 'a.cpp:1: fatal error: atomic: No such file' >&2; exit 1\n")
    broken.chmod(0o755)
    assert _found()["c++ compiler"].fact == f"{broken}: a.cpp:1: fatal error: atomic: No such file"


def test_gpus_that_torch_was_not_built_for_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "gpus", lambda: iter([("H100", 80 << 30)]))
    monkeypatch.setattr(doctor, "torch_build", lambda: TorchBuild("2.13.0+cpu", ""))
    found = _found()
    assert (found["torch"].verdict, found["torch"].fact) == ("problem", "2.13.0+cpu without CUDA, beside 1 GPUs")
    assert found["gpu"].fact == "H100, 80 GiB"
    monkeypatch.setattr(doctor, "torch_build", lambda: TorchBuild("2.13.0", "13.0"))
    assert _found()["torch"].verdict == "ok"
    monkeypatch.setattr(doctor, "torch_build", lambda: None)
    assert _found()["torch"].advice == "install it: pip install torch"


def test_a_cache_that_cannot_be_written_and_little_of_anything_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(doctor, "memory_limit", lambda: 1 << 30)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    found = _found()
    assert (found["cache"].verdict, found["cache"].fact) == ("problem", "/proc cannot be written")
    assert (found["memory"].verdict, found["open files"].verdict) == ("warning", "warning")


def test_a_hub_that_cannot_be_reached_is_a_warning_alone() -> None:
    (*_, found) = examine({"HF_ENDPOINT": "http://127.0.0.1:9"}, "127.0.0.1", 1)
    assert (found.what, found.verdict) == ("hugging face", "warning")
    assert "HTTPS_PROXY" in found.advice
