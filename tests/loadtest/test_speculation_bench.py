"""The benchmark of drafts: its requests, its servers and its report."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from stentor.loadtest.bench import main
from stentor.loadtest.peers.figures import Column, Round
from stentor.loadtest.peers.sides import Room
from stentor.loadtest.quality.command import ORDER, TEXTS
from stentor.loadtest.speculation import CHAT, EDITS, PASSAGE, Speculation, passage, ratios, requests, show, side_of
from stentor.protocols.ipc.config import SpeculativeConfig

NGRAM = SpeculativeConfig("ngram", 5, prompt_lookup_min=3)


def column(name: str, *rates: float) -> Column:
    rounds: dict[str, list[Round]] = {"edits": [{"tokens_per_s": rate, "tokens_a_step": 2.25} for rate in rates]}
    return Column(
        name=name, peer="stentor", bits="q4_0", version="", command=name, weights="w", weight_bytes=1, rounds=rounds
    )


def test_every_text_is_edited_in_every_way_and_only_noise_is_drawn_with_noise() -> None:
    asked = requests(range(100, 130), 64)
    assert len(asked["edits"]) == len(ORDER) * len(EDITS)
    assert len({body["messages"][0]["content"] for body in asked["edits"]}) == len(asked["edits"])
    assert len(asked["chat"]) == len(CHAT)
    assert {body["temperature"] for kind in ("edits", "chat") for body in asked[kind]} == {0}
    for body in asked["noise"]:
        assert body["temperature"] > 0
        assert body["logit_bias"].keys() == {str(word) for word in range(100, 130)}


@pytest.mark.parametrize("name", ORDER)
def test_a_passage_is_the_beginning_of_a_text_and_ends_where_a_sentence_or_line_does(name: str) -> None:
    text = (TEXTS / name).read_text()
    cut = passage(text)
    assert text.startswith(cut)
    assert PASSAGE <= len(cut) < PASSAGE + 600
    assert cut[-1] == "." or text[len(cut)] == "\n"


def test_a_side_is_given_drafts_of_the_same_kind() -> None:
    def command(name: str) -> list[str]:
        return side_of(name, NGRAM).launch(Path("w.gguf"), 1, Room(1)).command

    assert command("stentor-drafts") == [*command("stentor"), "--speculative-config", str(NGRAM)]
    added = ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "5"]
    assert command("llama.cpp-drafts") == [*command("llama.cpp"), *added]
    assert side_of("llama.cpp", NGRAM, repack=False).launch(Path("w.gguf"), 1, Room(1)).command[-1] == "--no-repack"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--only", "vllm"], "no side is called 'vllm'; expected stentor, stentor-drafts, llama.cpp, llama.cpp-drafts"),
        (["--config", '{"method": "suffix"}'], "llama.cpp does not draft by suffix; leave it out with --only"),
        (["--config", '{"method": "ngram"}'], "--config: num_speculative_tokens is missing"),
    ],
)
def test_what_cannot_be_compared_is_refused(options: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["speculation", *options]) == 2
    assert why in capsys.readouterr().err


def test_a_ratio_is_the_median_over_rounds_of_the_rates_of_one() -> None:
    columns = [column("stentor", 100, 200, 50), column("stentor-drafts", 150, 220, 100), column("llama.cpp", 10)]
    found = ratios(columns)
    assert found == {"stentor, edits": 1.5}
    console = Console(file=io.StringIO(), record=True, width=160)
    fields: dict[str, Any] = {"skipped": {}, "started_at": "", "model": "m"}
    record = Speculation(columns=columns, config=NGRAM, output_tokens=64, ratios=found, **fields)
    assert show(console, record) == 0
    assert "with drafts over without, stentor, edits: 1.50" in console.export_text()
