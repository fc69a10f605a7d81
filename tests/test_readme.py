"""README and docs, done as a reader would: commands run, snippets executed, tables compared."""

import contextlib
import io
import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from stentor.loadtest.server_process import hold_port
from stentor.server.main import commands
from stentor.server.options.reading import read_config

ROOT = Path(__file__).resolve().parent.parent
PAGES = {path: path.read_text() for path in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))}
TEXT = "\n".join(PAGES.values())
ENDPOINTS = PAGES[ROOT / "docs" / "reference" / "endpoints.md"]
VENV = Path(sys.prefix)
DEFAULT_ADDRESS = "http://127.0.0.1:8000"


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)


COMMANDS = [line for block in _blocks("sh") for line in block.splitlines() if line.strip()]


def _is(*words: str) -> list[str]:
    return [line for line in COMMANDS if tuple(shlex.split(line)[: len(words)]) == words]


SHOWN = [
    line
    for block in re.findall(r"^```\w*\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    if re.match(r"stentor (serve|pull|run-batch|bench) ", line)
]
SERVERS = [*_is("make", "serve"), *_is("stentor", "serve")]
ONE_SHOT = [line for line in _is("stentor") if line not in SERVERS]
CONTAINER = _is("docker")
OFFLINE = [block for block in _blocks("python") if "import stentor" in block]
RUN_OFFLINE = """
import contextlib, functools, sys, stentor

with contextlib.ExitStack() as models:
    load, stentor.LLM = stentor.LLM, lambda *given, **named: contextlib.nullcontext(loaded(*given, **named))
    loaded = functools.cache(lambda *given, **named: models.enter_context(load(*given, **named)))
    for snippet in sys.argv[1:]:
        exec(snippet, {"__name__": "__main__"})
        print(end="\\f")
"""
"""Runs snippets one after another. Those that want the same model get the same one, which takes seconds to load."""


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STENTOR_", "MAKE", "MFLAGS"))}
    return kept | {"PATH": f"{VENV / 'bin'}:{os.environ['PATH']}"}


def _make(*words: str) -> list[str]:
    """``make`` on the environment that runs this test, which is as fresh as it has to be."""
    return ["make", f"VENV={VENV}", "-o", str(VENV / ".stamp"), *words]


@contextlib.contextmanager
def _running(command: str, *more: str) -> Iterator[str]:
    """The server that a line starts, on a free port and with ``more``; gives its address."""
    held = hold_port()
    port = str(held.getsockname()[1])
    words = shlex.split(command)
    more = (*more, "--port", port)
    words = [*_make(*words[1:]), f"ARGS={shlex.join(more)}"] if words[0] == "make" else [*words, *more]
    address = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            words,
            cwd=ROOT,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + 120
            while not _healthy(address):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    pytest.fail(f"`{command}` did not serve:\n{log.read()}")
                time.sleep(0.05)
            yield address
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(60)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                held.close()


def _healthy(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture(scope="module")
def served(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What ``make serve`` gives a reader, but that what asks for no temperature gets the same answer in every run."""
    (command,) = _is("make", "serve")
    defaults = tmp_path_factory.mktemp("defaults")
    (defaults / "generation_config.json").write_text('{"temperature": 0}')
    with _running(command, "--generation-config", str(defaults)) as address:
        yield address


@pytest.fixture(scope="module")
def printed_offline(demo_model: Path) -> dict[str, str]:
    """What each of the snippets prints that need no server."""
    command = [sys.executable, "-P", "-c", RUN_OFFLINE, *OFFLINE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=_environment())
    assert done.returncode == 0, done.stderr
    return dict(zip([*OFFLINE, ""], done.stdout.split("\f"), strict=True))


def test_there_is_something_to_run() -> None:
    assert len(_blocks("python")) >= 2
    assert SERVERS
    assert ONE_SHOT
    assert set(COMMANDS) == {*SERVERS, *ONE_SHOT, *CONTAINER, *_is("make", "test")}, "a command that nothing here runs"


def _run_client(snippet: str, served: str, tmp_path: Path) -> str:
    """Here: its library has been imported already."""
    assert DEFAULT_ADDRESS in snippet
    program = tmp_path / "snippet.py"
    program.write_text(snippet.replace(DEFAULT_ADDRESS, served))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(program), run_name="__main__")
    return printed.getvalue()


@pytest.mark.parametrize("snippet", [block for block in _blocks("python") if block not in OFFLINE])
def test_a_client_runs_as_it_stands_and_prints_an_answer(snippet: str, served: str, tmp_path: Path) -> None:
    assert len(_run_client(snippet, served, tmp_path).split()) > 3


@pytest.mark.proof
@pytest.mark.parametrize("snippet", OFFLINE)
def test_a_program_without_a_server_runs_as_it_stands_and_prints_an_answer(
    snippet: str, printed_offline: dict[str, str]
) -> None:
    assert len(printed_offline[snippet].split()) > 3


def test_the_quick_start_s_question_gets_its_answer(served: str, tmp_path: Path) -> None:
    assert "Paris" in _run_client(_blocks("python")[0], served, tmp_path)


@pytest.mark.proof  # that its options are some, and that `make serve` serves, is tested each time
@pytest.mark.parametrize("command", [line for line in SERVERS if not line.startswith("make")])
def test_a_command_that_serves_does(command: str, demo_model: Path) -> None:
    words = shlex.split(command)
    with _running(command) as address, urllib.request.urlopen(f"{address}/v1/models", timeout=60) as answer:
        assert words[words.index("--served-model-name") + 1] in answer.read().decode()


@pytest.mark.parametrize("command", ONE_SHOT)
def test_a_command_that_ends_succeeds(command: str, demo_model: Path) -> None:
    done = subprocess.run(
        shlex.split(command), capture_output=True, text=True, check=False, timeout=60, env=_environment()
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("command", sorted(set(SHOWN)))
def test_a_command_that_is_shown_has_options_that_there_are(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = shlex.split(command, comments=True)[1:]
    monkeypatch.chdir(tmp_path)
    for name in ("keys", "cert.pem", "key.pem", "clients.pem"):
        Path(name).write_text("a key of some length\n")
    Path("voices").mkdir()
    if "--mmproj" in words:  # a file that there must be
        (tmp_path / "mmproj.gguf").touch()
        words[words.index("--mmproj") + 1] = "mmproj.gguf"
    if words[0] == "bench":
        kinds = [words[1], "serve"] if words[1] == "sweep" else [words[1]]  # a sweep takes what each of its runs takes
        shown = "".join(map(_help_of_bench, kinds))
        assert {word for word in words if word.startswith("--")} <= set(re.findall(r"--[\w-]+", shown))
    else:
        read_config(commands._given(commands._parse_arguments(words)), {})


def _help_of_bench(kind: str) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), pytest.raises(SystemExit, match="0"):
        commands.run(["bench", kind, "--help"])
    return shown.getvalue()


@pytest.mark.parametrize("block", _blocks("toml"))
def test_a_configuration_file_that_is_shown_has_options_that_there_are(block: str, tmp_path: Path) -> None:
    file = tmp_path / "stentor.toml"
    file.write_text(block)
    assert read_config({"config": str(file)}, {}) != read_config({}, {})


@pytest.mark.parametrize("target", sorted(set(re.findall(r"(?:`|^)make ([a-z-]+)", TEXT, re.MULTILINE))))
def test_each_make_target_that_is_named_exists(target: str) -> None:
    done = subprocess.run(
        _make("--dry-run", target), cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_readme_is_read_in_one_sitting() -> None:
    assert len(PAGES[ROOT / "README.md"].splitlines()) < 200


def test_every_page_is_led_to() -> None:
    linked = {(path.parent / target).resolve() for path, page in PAGES.items() for target in _links(page)}
    assert set(PAGES) - linked <= {ROOT / "README.md"}


def test_the_endpoints_that_are_listed_are_those_of_the_server(served: str) -> None:
    listed = {
        (method, path)
        for row in re.findall(r"^\| (`(?:GET|POST|DELETE|WS) /.*?) \|", ENDPOINTS, flags=re.MULTILINE)
        for method, path in re.findall(r"`(\w+) (/[^`]*)`", row)
    }
    sockets = {path for method, path in listed if method == "WS"}
    with urllib.request.urlopen(f"{served}/openapi.json", timeout=30) as answer:
        paths = json.loads(answer.read())["paths"]
    there = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert listed - {("WS", path) for path in sockets} == {each for each in there if not each[1].startswith("/page/")}
    for path in sockets:
        with connect(served.replace("http", "ws", 1) + path, proxy=None) as socket:
            assert socket.response is not None
            assert socket.response.status_code == 101


def test_a_way_to_open_a_socket_that_is_not_listed_is_refused(served: str) -> None:
    with pytest.raises(InvalidStatus):
        connect(served.replace("http", "ws", 1) + "/v1/chat/completions", proxy=None)


def test_the_files_that_are_linked_exist() -> None:
    for path, page in PAGES.items():
        for target in _links(page):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_the_headings_that_are_linked_exist() -> None:
    for path, page in PAGES.items():
        for target, anchor in re.findall(r"\]\(([^)#]*)#([\w-]+)\)", _prose(page)):
            headings = re.findall(
                r"^#+ (.*)$", _prose(PAGES[(path.parent / target).resolve() if target else path]), re.M
            )
            assert anchor in {_slug(heading) for heading in headings}, f"{path.name}: {target}#{anchor}"


def _slug(heading: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _prose(page: str) -> str:
    """Without blocks of code."""
    return re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)


def _links(page: str) -> list[str]:
    """To files; without what stands behind a ``#``."""
    targets = re.findall(r"\]\(([^)#]+)(?:#[\w-]*)?\)", _prose(page))
    return [target for target in targets if not target.startswith("http")]
