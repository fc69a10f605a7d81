"""The native library: built once, kept by content, and never in the way when it cannot be built."""

import ctypes
import fcntl
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from stentor.kernels import native
from stentor.kernels.native import BuildError
from stentor.kernels.native.build import FLAGS, build, find_compiler, find_sources

ANSWER = 'extern "C" __attribute__((visibility("default"))) int answer() { return 42; }\n'
PER_PROCESSOR = ("attention", "forward", "linear", "linear_packed", "native")
"""Folders with code that some processors have and others do not."""
UNITS = [f"{path.parent.name}/{path.name}" for path in find_sources() if path.parent.name in PER_PROCESSOR]
PROCESSORS = ("x86-64", "x86-64-v3", "skylake-avx512", "cooperlake", "sapphirerapids")
"""Cooper Lake has what Zen 4 has, which older compilers do not know: AVX-512 with bfloat16, without tiles."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "native.cpp"
    path.write_text(ANSWER)
    return path


def answer(library: Path) -> int:
    return int(ctypes.CDLL(str(library)).answer())


def test_every_operation_finds_its_functions_in_the_library() -> None:
    library = native.library()
    assert library is not None, native.unavailable_reason()
    assert native.unavailable_reason() is None
    for name in ("linear_f32", "rms_norm_bf16", "rotary_f32", "write_kv_16", "paged_attention_bf16"):
        assert getattr(library.handle, f"stentor_{name}")
    assert {path.parent.name for path in find_sources()} >= {"linear", "norm", "rotary", "kv_cache", "attention"}


def test_a_library_is_built_with_progress_and_then_found_without_being_built_again(
    source: Path, tmp_path: Path
) -> None:
    steps: list[tuple[int, int]] = []
    first = build(sources=[source], cache_dir=tmp_path / "cache", progress=lambda *step: steps.append(step))
    assert answer(first) == 42
    assert steps == [(0, 2), (1, 2), (2, 2)]
    stamp = first.stat().st_mtime_ns
    steps.clear()
    assert build(sources=[source], cache_dir=tmp_path / "cache", progress=lambda *step: steps.append(step)) == first
    assert first.stat().st_mtime_ns == stamp
    assert steps == []


def test_units_are_compiled_with_what_is_compiled_once_for_all(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prelude = tmp_path / "prelude.h"
    prelude.write_text("#define FOUND_IN_THE_PRELUDE 43\n")
    monkeypatch.setattr("stentor.kernels.native.build.PRELUDE", prelude)
    monkeypatch.setattr("stentor.kernels.native.build.PRELUDE_PAYS", 1)
    source.write_text(ANSWER.replace("42", "FOUND_IN_THE_PRELUDE"))
    assert answer(build(sources=[source], cache_dir=tmp_path / "cache")) == 43
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_changed_source_or_header_is_another_library(source: Path, tmp_path: Path) -> None:
    header = tmp_path / "some.h"
    header.write_text("// one\n")
    first = build(sources=[source], headers=[header], cache_dir=tmp_path / "cache")
    header.write_text("// two\n")
    second = build(sources=[source], headers=[header], cache_dir=tmp_path / "cache")
    source.write_text(ANSWER.replace("42", "43"))
    third = build(sources=[source], headers=[header], cache_dir=tmp_path / "cache")
    assert len({first, second, third}) == 3
    assert answer(third) == 43


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names x86 processors")
def test_another_processor_is_another_library(tmp_path: Path) -> None:
    source = tmp_path / "native.cpp"
    source.write_text(
        'extern "C" __attribute__((visibility("default"))) int answer() {\n'
        "#ifdef __AVX2__\n    return 2;\n#else\n    return 1;\n#endif\n}\n"
    )
    built = [build(sources=[source], cache_dir=tmp_path / "cache", march=march) for march in ("x86-64", "haswell")]
    assert [answer(library) for library in built] == [1, 2]
    assert built[0] == build(sources=[source], cache_dir=tmp_path / "cache", march="x86-64")


def test_a_compile_error_is_one_line_that_names_the_file_and_leaves_nothing_behind(
    source: Path, tmp_path: Path
) -> None:
    source.write_text("this is not C++\n")
    with pytest.raises(BuildError, match=r"native\.cpp.*error") as failure:
        build(sources=[source], cache_dir=tmp_path / "cache")
    assert "\n" not in str(failure.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_one_clear_line(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="set XDG_CACHE_HOME to a writable folder"):
        build(sources=[source], cache_dir=tmp_path / "file" / "cache")


def test_a_compiler_that_does_not_run_is_one_clear_line(source: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="cannot run the C\\+\\+ compiler"):
        build(sources=[source], compiler=str(tmp_path / "none"), cache_dir=tmp_path / "cache")


def test_builders_that_race_agree_on_one_whole_library(source: Path, tmp_path: Path) -> None:
    found: list[Path] = []
    start = threading.Barrier(4)

    def race() -> None:
        start.wait()
        found.append(build(sources=[source], cache_dir=tmp_path / "cache"))

    racers = [threading.Thread(target=race) for _ in range(4)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert answer(found[0]) == 42
    assert list((tmp_path / "cache").iterdir()) == [found[0]]


@pytest.fixture
def other_build(tmp_path: Path) -> Iterator[int]:
    """What another process holds while it builds in ``tmp_path``; it has compiled two units."""
    scratch = tmp_path / ".build-other"
    scratch.mkdir()
    for name in ("0.o", "3.o", "kernels.s"):
        (scratch / name).touch()
    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    yield held
    os.close(held)


def test_who_waits_for_another_build_tells_how_far_it_is(source: Path, tmp_path: Path, other_build: int) -> None:
    steps: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        steps.append((done, total))
        fcntl.flock(other_build, fcntl.LOCK_UN)

    assert answer(build(sources=[source], cache_dir=tmp_path, progress=progress)) == 42
    assert steps == [(2, 2), (0, 2), (1, 2), (2, 2)]


@pytest.mark.usefixtures("other_build")
def test_a_build_that_does_not_move_on_is_not_waited_for(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stentor.kernels.native.build.STUCK_SECONDS", 0.0)
    assert answer(build(sources=[source], cache_dir=tmp_path)) == 42


def test_a_damaged_library_is_removed_so_that_the_next_start_builds_it(tmp_path: Path) -> None:
    from stentor.kernels.native.load import load

    damaged = tmp_path / "kernels-0.so"
    damaged.write_bytes(b"not a library")
    with pytest.raises(BuildError, match="start again"):
        load(damaged)
    assert not damaged.exists()


@pytest.mark.proof  # a process that imports torch
def test_without_a_compiler_operations_fall_back_and_the_reason_is_told() -> None:
    script = (
        "import torch\n"
        "from stentor import kernels\n"
        "from stentor.kernels import native, norm\n"
        "assert native.prepare() is None\n"
        "print(native.unavailable_reason())\n"
        "x = torch.ones(2, 8)\n"
        "assert norm.choose(x) == 'reference'\n"
        "assert torch.allclose(kernels.rms_norm(x, torch.ones(8), 0.0), x)\n"
        "try:\n"
        "    norm.choose(x, 'native')\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    link = str(Path(native.__file__).parents[2].parent / ".link")
    paths = [path for path in sys.path if path] + [link]
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        env={"PATH": "/nowhere", "PYTHONPATH": ":".join(paths), "HOME": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reason, refusal = done.stdout.splitlines()
    assert "no C++ compiler on PATH" in reason
    assert refusal.startswith("the native variant cannot run: no C++ compiler")


def test_kernels_are_built_before_packages_are_installed_and_a_failure_is_left_to_the_first_start(
    tmp_path: Path,
) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\nexit 1\n")
    compiler.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(Path(native.__file__).with_name("build.py"))],
        env={"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_a_home_that_nobody_has_is_one_clear_line(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(BuildError, match="set XDG_CACHE_HOME"):
        build(sources=[source])


@pytest.mark.proof(each="unit")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names x86 processors")
@pytest.mark.parametrize(
    ("unit", "arch"),
    [(unit, arch) for unit in UNITS for arch in PROCESSORS],
)
def test_the_kernels_compile_for_other_processors(unit: str, arch: str) -> None:
    source = next(path for path in find_sources() if path.match(unit))
    include = f"-I{Path(native.__file__).parent}"
    command = [find_compiler(), *FLAGS, f"-march={arch}", "-fsyntax-only", "-Wall", "-Werror", include, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_threads_follow_torch() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert native.threads() == 1
    finally:
        torch.set_num_threads(before)


def test_what_a_killed_build_left_behind_is_removed_by_the_next(tmp_path: Path) -> None:
    old, young = tmp_path / ".build-old", tmp_path / ".build-young"
    for folder in (old, young):
        folder.mkdir()
    os.utime(old, (0, 0))
    source = tmp_path / "native.cpp"
    source.write_text('extern "C" int answer() { return 42; }')
    build(sources=[source], headers=[], cache_dir=tmp_path)
    assert not old.exists()
    assert young.exists()
