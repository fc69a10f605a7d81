"""One batch at a time through a real engine: what is saved fits what was asked for, and itself."""

from pathlib import Path

import msgspec
import pytest

from stentor.loadtest.client import Answer
from stentor.loadtest.offline import Latency, latency, read_iteration
from stentor.tests.loadtest.made_up import made_up


def test_prefill_ends_with_the_last_first_token_and_gaps_count_from_there() -> None:
    early = Answer(10.0, [11.0, 12.0, 13.0, 13.5], prompt_tokens=1, tokens=4)
    late = Answer(10.1, [12.0, 13.0, 13.6], prompt_tokens=1, tokens=3)
    found = read_iteration([early, late])
    assert found.prefill_s == pytest.approx(2.0)
    assert found.gaps_s == pytest.approx([1.0, 0.5, 1.0, 0.6]), "the gap from 11 to 12 had a prefill in it"
    assert found.total_s == pytest.approx(3.6)


@pytest.mark.proof  # an engine in a new process
def test_a_batch_is_measured_and_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "deep" / "latency.json"
    shape = ["--batch-size", "3", "--input-tokens", "20", "--output-tokens", "40", "--warmup", "1", "--iterations", "2"]
    assert latency([*shape, *made_up(tmp_path), "--save", str(saved)]) == 0
    result = msgspec.json.decode(saved.read_bytes(), type=Latency)
    assert (result.batch_size, result.input, result.output, len(result.iterations)) == (3, 20, 40, 2)
    assert result.prefill.count == result.total.count == 2
    assert result.per_token.count == sum(len(iteration.gaps_s) for iteration in result.iterations) <= 2 * 3 * 39
    for iteration in result.iterations:  # a reader that is held up has all tokens at once, and no gap
        assert 0 < iteration.prefill_s <= iteration.total_s
        assert iteration.total_s >= iteration.prefill_s + max(iteration.gaps_s, default=0.0)
    decoded = 3e3 / result.per_token.p50 if result.per_token.count else 0.0
    assert result.decode_tokens_per_s == pytest.approx(decoded)
    assert result.worker["load_format"] == "dummy"
    assert "3 at once, 20 tokens in, 40 out" in capsys.readouterr().out


def test_what_the_model_cannot_hold_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert latency(["--model", str(tmp_path / "nothing")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("stentor bench latency: no model")
    assert error.count("\n") == 1
