"""The command as one types it: what it refuses, skips and writes. No peer is installed here."""

import json
from pathlib import Path

import msgspec
import pytest

from stentor.loadtest import bench
from stentor.loadtest.peers.command import choose
from stentor.loadtest.peers.figures import Column, Report, Settings, grids, markdown, measures, remarks
from stentor.loadtest.peers.random_models import PREFIX, RANDOM_MODELS
from stentor.loadtest.peers.sides import SIDES


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "ollama"], "no side is called 'ollama'; expected stentor-bf16, "),
        (["--shapes", "many"], "no shape is called 'many'"),
        (["--shapes", "prefill:"], "no shape is called 'prefill:'"),
        (["--model", "random:gpt-9"], "no random model is called 'random:gpt-9'; expected random:qwen3-30b-a3b, "),
    ],
)
def test_a_mistake_is_told_in_one_line_before_anything_starts(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["peers", *options]) == 2
    reported = capsys.readouterr().err
    assert message in reported
    assert reported.count("\n") == 1


@pytest.mark.parametrize("options", [["--rounds", "0"], ["--starts", "-1"], ["--output-tokens", "1"]])
def test_a_number_that_is_too_small_is_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(["peers", *options])
    assert ended.value.code == 2
    assert f"argument {options[0]}" in capsys.readouterr().err


def test_sides_are_measured_in_the_order_in_which_they_are_named() -> None:
    assert [side.name for side in choose("llama.cpp-q4_0, stentor-q4_0,llama.cpp-q4_0")] == [
        "llama.cpp-q4_0",
        "stentor-q4_0",
    ]
    assert [side.name for side in choose(None)] == list(SIDES)


def test_the_list_says_who_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["peers", "--list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert list(lines) == [*SIDES, *(PREFIX + name for name in RANDOM_MODELS)]
    assert lines["random:qwen3-1.7b"].endswith(" Qwen3-1.7B")
    assert lines["stentor-q4_0"].endswith("ready")
    assert lines["llama.cpp-q4_0"].endswith("run: make peers ARGS=llama.cpp")


def test_a_peer_that_is_not_installed_is_skipped_with_a_line(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from stentor.tests.loadtest.peers.vocabulary import write_tokenizer

    folder = cache / "model"
    folder.mkdir()
    write_tokenizer(folder, 400)
    (folder / "config.json").write_text("{}")
    output = cache / "out.json"
    assert bench.main(["peers", "--model", str(folder), "--only", "vllm-bf16", "--save", str(output)]) == 1
    assert "vllm-bf16 skipped: vllm is not installed; run: make peers ARGS=vllm" in capsys.readouterr().out
    saved = msgspec.json.decode(output.read_bytes(), type=Report)
    assert saved.columns == []
    assert list(saved.skipped) == ["vllm-bf16"]
    assert saved.settings.rounds == 5


def test_a_model_that_is_not_there_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["peers", "--model", "./no-such.gguf"]) == 1
    assert "no such folder or file" in capsys.readouterr().err


def _report() -> Report:
    def column(name: str, rate: float, **more: object) -> Column:
        peer, _, bits = name.rpartition("-")
        made = {
            "name": name,
            "peer": peer,
            "bits": bits,
            "version": "",
            "command": f"run {name}",
            "weights": "w",
            "weight_bytes": 1,
            "rounds": {"8": [{"output_tokens_per_s": rate, "others_cores": 0.0, "strangers_cores": 0.5}]},
            **more,
        }
        return msgspec.convert(made, Column)

    return Report(
        started_at="",
        command=[],
        model="m",
        machine={},
        settings=Settings(["8"]),
        columns=[
            column("stentor-q4_0", 300),
            column("llama.cpp-q4_0", 1200.4, rounds={"8": [{"output_tokens_per_s": 200}]}),
        ],
        skipped={"vllm-bf16": "not installed"},
    )


def test_the_page_has_medians_ratios_and_commands() -> None:
    page = markdown(_report())
    assert page.startswith("m: 128 tokens in, 128 out, long prompt 2048; medians of 1 rounds")
    assert "|  | stentor-q4_0 | llama.cpp-q4_0 |" in page
    assert "| 8 streams: output tokens/s | **300** | 200 |" in page
    assert (
        "| stentor-q4_0 | 8 streams: output tokens/s | llama.cpp-q4_0 200 | 1.50 | llama.cpp-q4_0 200 | 1.50 |" in page
    )
    assert "llama.cpp-q4_0: run llama.cpp-q4_0" in page
    assert "| start to ready, s | - | - |" in page


def test_the_terminal_shows_a_table_of_medians_and_one_of_ratios() -> None:
    (columns, medians), (_, compared) = grids(_report().columns, measures(["8"]), "[bold]{}[/bold]")
    assert columns == ["", "stentor-q4_0", "llama.cpp-q4_0"]
    assert len(medians) == len(measures(["8"]))
    assert medians[0] == ["8 streams: output tokens/s", "[bold]300[/bold]", "200"]
    assert len(compared) == 1


def test_a_reader_is_told_what_to_doubt() -> None:
    reported = "\n".join(remarks(_report()))
    assert "stentor-q4_0: other processes used 0.50 cores meanwhile: do not trust" in reported
    assert "vllm-bf16 skipped: not installed" in reported
    assert json.loads(msgspec.json.encode(_report()))["kind"] == "peers"
