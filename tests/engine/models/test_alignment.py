from statistics import median

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from stentor.engine.models.alignment import handovers, median_filter, token_times

COSTS = st_numpy.arrays(
    np.float64,
    st.tuples(st.integers(1, 9), st.integers(1, 14)),
    elements=st.integers(-8, 8).map(lambda number: number / 4),
)


def cheapest(cost: npt.NDArray[np.float64]) -> float:
    """The cost of the best path, cell by cell."""
    rows, columns = cost.shape
    best = np.full((rows + 1, columns + 1), np.inf)
    best[0, 0] = 0
    for row in range(rows):
        for column in range(columns):
            before = min(best[row, column], best[row, column + 1], best[row + 1, column])
            best[row + 1, column + 1] = cost[row, column] + before
    return float(best[rows, columns])


@given(COSTS)
def test_handovers_are_those_of_a_cheapest_path(cost: npt.NDArray[np.float64]) -> None:
    rows, columns = cost.shape
    entered = handovers(cost)
    assert len(entered) == rows
    assert entered[0] == 0
    assert entered == sorted(entered)
    assert entered[-1] < columns
    # the best that a path can do which enters each row there: it stays in a row up to the next handover, or just before
    total = np.array([0.0])
    ends = [*entered[1:], columns - 1]
    best: dict[int, float] = {-1: 0.0}
    for row, (begin, end) in enumerate(zip(entered, ends, strict=True)):
        following: dict[int, float] = {}
        for last, so_far in best.items():
            if last not in (begin - 1, begin) and row:
                continue
            for stop in {end, end - 1} if row < rows - 1 else {end}:
                if stop >= begin:
                    spent = so_far + cost[row, begin : stop + 1].sum()
                    following[stop] = min(following.get(stop, np.inf), spent)
        best = following
    del total
    assert min(best.values()) == pytest.approx(cheapest(cost))


@pytest.mark.parametrize("width", [1, 3, 7])
@pytest.mark.parametrize("length", [1, 4, 5, 30])
def test_medians_mirror_the_ends(width: int, length: int) -> None:
    values = torch.randn(2, length, generator=torch.Generator().manual_seed(length))
    reach = width // 2
    found = median_filter(values, width)
    assert found.shape == values.shape
    if length <= reach:
        assert torch.equal(found, values)
        return
    for row, out in zip(values.tolist(), found.tolist(), strict=True):
        mirrored = [row[abs(i) if i < length else 2 * (length - 1) - i] for i in range(-reach, length + reach)]
        assert out == pytest.approx([median(mirrored[i : i + width]) for i in range(length)])


def test_a_staircase_is_found() -> None:
    weights = torch.full((2, 5, 100), 1e-4)
    for row in range(5):
        weights[:, row, 20 * row : 20 * row + 20] = 1.0
    assert token_times(weights, 0, 7) == pytest.approx([0.0, 0.4, 0.8, 1.2, 1.6])
    assert token_times(weights, 2, 7) == pytest.approx([0.0, 1.2, 1.6]), "the first row of all begins at nothing"


def test_rows_that_attend_alike_give_numbers() -> None:
    assert token_times(torch.full((1, 3, 10), 0.1), 0, 7) == sorted(token_times(torch.full((1, 3, 10), 0.1), 0, 7))
    assert token_times(torch.ones(1, 2, 1), 0, 7) == [0.0, 0.0]
