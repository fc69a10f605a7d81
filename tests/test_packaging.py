"""What pyproject.toml says against what lies on disk."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import stentor
from stentor.tests.test_dockerfile import copied_from_context

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = ("protocols", "kernels", "engine", "server", "loadtest")
DATA = {".cpp", ".h", ".json", ".html", ".css", ".js", ".svg", ".txt"}


def _packages_on_disk() -> set[str]:
    found = {"stentor"}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            found.add(".".join(("stentor", *path.parent.relative_to(ROOT).parts)))
    return found


def _shipped_on_disk() -> set[str]:
    files = {path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in DATA | {".py"}}
    files = {path for path in files if "results" not in path.parts and "__pycache__" not in path.parts}
    return {f"stentor/{path.relative_to(ROOT)}" for path in files} | {"stentor/__init__.py", "stentor/py.typed"}


def _constraints() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    found = {}
    for pin in pins:
        (specifier,) = pin.specifier
        assert specifier.operator == "==", pin
        found[_normal(pin.name)] = Version(specifier.version)
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _requirements() -> list[Requirement]:
    extras = PROJECT["project"]["optional-dependencies"]
    everything = [*PROJECT["project"]["dependencies"], *extras["dev"], *extras["all"]]
    return [Requirement(line) for line in everything]


def test_the_package_list_is_what_lies_on_disk() -> None:
    listed = PROJECT["tool"]["setuptools"]["packages"]
    assert len(listed) == len(set(listed))
    assert set(listed) == _packages_on_disk()


def test_every_package_has_an_init_file() -> None:
    for name in PROJECT["tool"]["setuptools"]["packages"]:
        assert (ROOT / Path(*name.split(".")[1:]) / "__init__.py").is_file(), name


def test_a_wheel_of_what_the_image_copies_ships_every_source_and_nothing_else(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in copied_from_context():
        subprocess.run(["cp", "-r", str(ROOT / name), str(checkout)], check=True)
    build = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-P", "-c", build, str(tmp_path)], cwd=checkout, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"stentor-{stentor.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert names == _shipped_on_disk()
        info = f"stentor-{stentor.__version__}.dist-info"
        assert "stentor = stentor.server.main.cli:main" in archive.read(f"{info}/entry_points.txt").decode()
        assert archive.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


def test_the_version_stands_in_one_place() -> None:
    assert "version" in PROJECT["project"]["dynamic"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "stentor.__version__"}
    assert str(Version(stentor.__version__)) == stentor.__version__


def test_the_extras_that_users_are_told_of_exist() -> None:
    assert {"dev", "all"} <= set(PROJECT["project"]["optional-dependencies"])


def test_triton_is_asked_for_on_linux_alone() -> None:
    (triton,) = [one for one in _requirements() if one.name == "triton"]
    assert triton.marker is not None
    assert triton.marker.evaluate({"sys_platform": "linux"})
    assert not triton.marker.evaluate({"sys_platform": "darwin"})


@pytest.mark.parametrize("requirement", _requirements(), ids=lambda requirement: requirement.name)
def test_each_requirement_has_a_lower_bound_that_the_constraints_meet(requirement: Requirement) -> None:
    assert any(specifier.operator == ">=" for specifier in requirement.specifier)
    pinned = _constraints()[_normal(requirement.name)]
    assert pinned in requirement.specifier


@pytest.mark.parametrize("name", ["uvicorn", "pytest"])
def test_what_we_use_private_parts_of_has_an_upper_bound(name: str) -> None:
    """``server/http`` extends uvicorn's protocols, and ``tests/support/forked.py`` runs pytest's own loop."""
    (asked,) = [one for one in _requirements() if one.name == name]
    assert any(specifier.operator == "<" for specifier in asked.specifier)


def test_torch_is_asked_for_as_the_design_says_and_pinned_without_a_build() -> None:
    (torch,) = [one for one in _requirements() if one.name == "torch"]
    assert torch.specifier == SpecifierSet(">=2.11")
    assert _constraints()["torch"].local is None, "the same line must serve CPU and CUDA builds"


def test_ci_calls_make_test_and_nothing_more() -> None:
    script = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line for line in script if "make" in line] == ["exec make test"]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


@pytest.mark.parametrize("target", ["venv", "serve", "pull", "test", "lint", "format", "bench", "clean"])
def test_make_help_lists_what_there_is(target: str) -> None:
    done = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"  make {target} " in done.stdout


def test_a_fresh_environment_is_left_alone_and_a_missing_python_is_named(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    venv.mkdir()
    (venv / ".stamp").touch()
    fresh = subprocess.run(["make", "venv", f"VENV={venv}"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert fresh.returncode == 0
    assert "Nothing to be done" in fresh.stdout
    missing = subprocess.run(
        ["make", "venv", f"VENV={tmp_path / 'other'}", "PYTHON=python-that-is-not-there"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert missing.returncode != 0
    assert "no Python 3.11 or newer found (looked for python-that-is-not-there)" in missing.stderr
    assert not (tmp_path / "other").exists()
