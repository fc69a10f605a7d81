"""Distributions: what they draw, and what is refused."""

import numpy as np
import pytest

from stentor.loadtest.serving.lengths import parse_lengths, whole
from stentor.loadtest.tool import UsageError

DRAWS = 4000


def _draws(text: str, least: float = 1.0) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    lengths, rng = parse_lengths(text, least), np.random.default_rng(5)
    return np.array([whole(lengths, rng) for _ in range(DRAWS)])


def test_a_number_is_constant() -> None:
    assert set(_draws("128")) == {128}


def test_uniform_takes_every_length_from_low_to_high() -> None:
    counts = np.bincount(_draws("uniform:3:6"))
    assert counts[:3].sum() == 0
    assert len(counts) == 7
    assert counts[3:].min() > 0.8 * DRAWS / 4


def test_normal_has_its_mean_and_deviation_and_keeps_its_bounds() -> None:
    free = _draws("normal:100:10")
    assert abs(free.mean() - 100) < 1
    assert abs(free.std() - 10) < 0.6
    bounded = _draws("normal:100:80:50:120")
    assert (bounded.min(), bounded.max()) == (50, 120)
    assert _draws("normal:2:50").min() == 1


def test_lognormal_has_its_median_and_sigma() -> None:
    values = _draws("lognormal:400:0.5")
    assert abs(np.median(values) / 400 - 1) < 0.05
    assert abs(np.log(values).std() - 0.5) < 0.03
    assert _draws("lognormal:400:2:10:1000").max() == 1000


def test_times_may_be_nought_where_lengths_may_not() -> None:
    assert parse_lengths("0", least=0.0).greatest == 0
    with pytest.raises(UsageError, match="at least 1"):
        parse_lengths("0")


@pytest.mark.parametrize(
    "text", ["", "x", "uniform:4", "uniform:9:3", "normal:1", "normal:1:2:3", "zipf:1:50", "1:2", "-3"]
)
def test_what_is_no_length_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_lengths(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["nan", "inf", "normal:10:5:30:20", "uniform:1:inf"])
def test_numbers_that_allow_nothing_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_lengths(text)
