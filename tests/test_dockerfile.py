"""The Dockerfile against the project. There need be no Docker to run this."""

import json
import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet

import stentor
from stentor.kernels.native.build import COMPILERS
from stentor.server.config.config import DEFAULTS
from stentor.server.options.option import OPTIONS

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@dataclass(frozen=True)
class Instruction:
    stage: str
    word: str
    rest: str


def _read() -> list[Instruction]:
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    found = []
    stage = ""
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            stage = rest.split()[-1]
        found.append(Instruction(stage, word, " ".join(rest.split())))
    return found


INSTRUCTIONS = _read()


def _of(word: str, stage: str | None = None) -> list[str]:
    return [line.rest for line in INSTRUCTIONS if line.word == word and stage in (None, line.stage)]


def _one(word: str, stage: str = "runtime") -> str:
    (rest,) = _of(word, stage)
    return rest


def copied_from_context() -> list[str]:
    """Paths of the checkout that the image is built from."""
    return [source for rest in _of("COPY", "build") for source in rest.split()[:-1]]


def test_the_stages_build_on_one_another_and_the_last_one_is_the_runtime() -> None:
    stages = [rest.split() for rest in _of("FROM")]
    assert [words[-1] for words in stages] == ["base", "build", "runtime"]
    assert [words[0] for words in stages] == ["${BASE}", "base", "base"]
    assert _of("COPY", "runtime") == ["--from=build /opt/stentor /opt/stentor"]


def test_what_is_copied_exists_and_reaches_the_builder() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*", "nothing goes to the builder but what is named"
    let_through = [line.removeprefix("!") for line in lines if line.startswith("!")]
    for path in copied_from_context():
        assert (ROOT / path).exists(), path
        assert path in let_through, path
    assert set(let_through) == set(copied_from_context())


def test_every_package_is_copied() -> None:
    top = {name.split(".")[1] for name in PROJECT["tool"]["setuptools"]["packages"] if "." in name}
    assert top <= set(copied_from_context())
    assert {"__init__.py", "py.typed", "pyproject.toml", "constraints.txt"} <= set(copied_from_context())


def test_the_entry_point_is_the_console_command_and_serves_by_default() -> None:
    (command,) = json.loads(_one("ENTRYPOINT"))
    assert command in PROJECT["project"]["scripts"]
    assert json.loads(_one("CMD")) == ["serve"]


def test_the_versions_in_the_dockerfile_are_those_of_the_project() -> None:
    labels = dict(word.split("=", 1) for word in shlex.split(_one("LABEL")))
    assert labels["org.opencontainers.image.version"] == stentor.__version__
    assert labels["org.opencontainers.image.licenses"] == PROJECT["project"]["license"]
    pythons = set(re.findall(r"python(3\.\d+)", " ".join(_of("RUN"))))
    assert len(pythons) == 1
    assert pythons.pop() in SpecifierSet(PROJECT["project"]["requires-python"])


def test_everything_is_installed_through_the_constraints() -> None:
    installs = re.findall(r"pip install ([^&]*)", " && ".join(_of("RUN")))
    assert len(installs) == 3
    assert all("-c constraints.txt" in install for install in installs)


def test_a_compiler_that_the_kernels_look_for_is_in_the_image() -> None:
    installed = re.findall(r"apt-get install -y --no-install-recommends ([^&]*)", _one("RUN", "base"))[0].split()
    assert set(installed) & set(COMPILERS)
    assert any(package.endswith("-dev") for package in installed), "Triton needs Python's headers"


def test_it_does_not_run_as_root_and_can_write_its_cache() -> None:
    user = _one("USER")
    assert user != "root"
    run = _one("RUN")
    assert re.search(rf"useradd .*\b{user}\b", run)
    assert f"install -d -o {user} -g {user} {_one('VOLUME')}" in run
    order = [line.word for line in INSTRUCTIONS if line.stage == "runtime"]
    assert order.index("RUN") < order.index("USER") < order.index("ENTRYPOINT")


def test_every_cache_lies_in_the_volume() -> None:
    variables = dict(word.split("=", 1) for word in shlex.split(_one("ENV")))
    for name in ("XDG_CACHE_HOME", "HF_HOME", "TRITON_CACHE_DIR"):
        assert Path(variables[name]).is_relative_to(_one("VOLUME"))


def test_its_own_variables_are_options_and_let_the_host_in() -> None:
    variables = dict(word.split("=", 1) for word in shlex.split(_one("ENV")))
    own = {name for name in variables if name.startswith("STENTOR_")}
    assert own <= {option.variable for option in OPTIONS}
    assert variables["STENTOR_HOST"] == "0.0.0.0"
    assert _one("EXPOSE") == str(DEFAULTS.http.port)


def test_the_health_check_asks_health_on_the_default_port() -> None:
    command = json.loads(_one("HEALTHCHECK").partition("CMD ")[2])
    assert command[:2] == ["python", "-c"]
    assert f"http://127.0.0.1:{DEFAULTS.http.port}/health" in command[2]
    compile(command[2], "HEALTHCHECK", "exec")
