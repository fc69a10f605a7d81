import os
from pathlib import Path

import pytest

from stentor.tests import arm
from stentor.tests.kernels.test_aarch64 import CROSS, EMULATOR


def test_without_an_emulator_or_a_compiler_one_line_says_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert arm.main([]) == 2
    told = capsys.readouterr().out
    assert told.startswith("no qemu-aarch64 and no aarch64-linux-gnu-g++: apt-get install")
    assert told.count("\n") == 1


def test_without_a_python_for_it_the_commands_that_get_one_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in (CROSS, EMULATOR):
        arm._script(tmp_path / name, "exit 0")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(arm, "HOME", tmp_path)
    assert arm.main(["tests/engine/channel"]) == 2
    told = capsys.readouterr().out
    assert told.startswith("left out: there is no Python for AArch64")
    assert "python3.11-minimal:arm64" in told
