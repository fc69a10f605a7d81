import ast
import os
import sys
from pathlib import Path

import pytest

from stentor.tests.arm import __main__ as arm
from stentor.tests.arm import files
from stentor.tests.kernels.test_aarch64 import CROSS, EMULATOR


def test_without_an_emulator_or_a_compiler_one_line_says_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert arm.main([]) == 2
    told = capsys.readouterr().out
    assert told.startswith("no qemu-aarch64 and no aarch64-linux-gnu-g++: apt-get install")
    assert told.count("\n") == 1


def test_where_no_python_can_be_fetched_one_line_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in (CROSS, EMULATOR):
        files.script(tmp_path / name, "exit 0")
    files.script(tmp_path / "apt-get", "echo E: no such release >&2; exit 100")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin:/bin")
    monkeypatch.setattr(arm, "HOME", tmp_path / "home")
    assert arm.main(["tests/engine/channel"]) == 2
    assert capsys.readouterr().out.splitlines()[-1] == "apt-get failed: E: no such release"


def test_the_emulated_system_describes_processors_of_arm(tmp_path: Path) -> None:
    files.describe_processors(tmp_path)
    told = (tmp_path / "proc/cpuinfo").read_text()
    assert told.count("CPU implementer\t: 0x41") == told.count("processor") == os.cpu_count()
    identities = sorted(tmp_path.glob("sys/devices/system/cpu/cpu*/regs/identification/midr_el1"))
    assert [path.read_text() for path in identities] == ["0x00000000413fd0c1\n"] * (os.cpu_count() or 1)


def test_packages_for_another_processor_go_into_one_folder_alone(tmp_path: Path) -> None:
    for command in files.debian_commands(tmp_path):
        written = [part.partition("=")[2] for part in command if part.startswith("-oDir::") and "status" not in part]
        assert written
        assert all(Path(path).is_relative_to(tmp_path) for path in written)
        assert "-oAPT::Architectures=arm64" in command
    wheels = files.wheels_command(tmp_path / "site")
    assert wheels[wheels.index("--target") + 1] == str(tmp_path / "site")
    assert any(part.startswith("torch>=") for part in wheels)
    assert not any("x86_64" in part for part in wheels)


def test_what_emulated_tests_import_is_fetched(tmp_path: Path) -> None:
    fetched = {part.partition(">")[0] for part in files.wheels_command(tmp_path)}
    for path in arm.EMULATED:
        for node in ast.walk(ast.parse((files.ROOT / path).read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            outside = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"stentor"}
            assert outside <= fetched, path
