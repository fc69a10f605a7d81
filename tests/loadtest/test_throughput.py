"""Many requests at once through a real engine."""

from pathlib import Path

import msgspec
import pytest

from stentor.loadtest.client import Answer, seconds_of
from stentor.loadtest.offline import Throughput, draw_lengths, throughput
from stentor.loadtest.serving.lengths import parse_lengths
from stentor.tests.loadtest.made_up import made_up


def test_lengths_are_the_same_for_a_seed_and_keep_their_range() -> None:
    lengths = draw_lengths(50, parse_lengths("uniform:4:9"), parse_lengths("7"), seed=1)
    assert lengths == draw_lengths(50, parse_lengths("uniform:4:9"), parse_lengths("7"), seed=1)
    assert lengths != draw_lengths(50, parse_lengths("uniform:4:9"), parse_lengths("7"), seed=2)
    assert {prompt for prompt, _ in lengths} == set(range(4, 10))
    assert {output for _, output in lengths} == {7}


def test_a_round_lasts_from_the_first_that_was_sent_to_the_last_that_ended() -> None:
    answers = [Answer(5.0, [6.0, 7.0], 1, 3), Answer(5.5, [6.0, 9.0], 1, 4), Answer(5.2, [6.0], 1, 5)]
    assert seconds_of(answers) == 4.0


@pytest.mark.proof  # an engine in a new process
def test_every_token_of_every_round_is_counted(tmp_path: Path) -> None:
    saved = tmp_path / "throughput.json"
    lengths = ["--input-tokens", "uniform:5:9", "--output-tokens", "4"]
    shape = ["--requests", "7", *lengths, "--rounds", "2", "--max-num-seqs", "3"]
    assert throughput([*shape, *made_up(tmp_path), "--save", str(saved)]) == 0
    result = msgspec.json.decode(saved.read_bytes(), type=Throughput)
    assert result.output_tokens == 28
    assert 35 <= result.prompt_tokens <= 63
    low, high = sorted(28 / seconds for seconds in result.seconds)
    assert result.output_tokens_per_s == pytest.approx((low + high) / 2)
    assert result.total_tokens_per_s == pytest.approx(result.output_tokens_per_s + result.prompt_tokens_per_s)


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [(["--input", "0"], 2, "allows no length"), (["--model", "/nowhere/at/all"], 1, "no model")],
)
def test_what_cannot_be_run_is_one_line(
    arguments: list[str], code: int, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert throughput(arguments) == code
    error = capsys.readouterr().err
    assert why in error
    assert error.count("\n") == 1
