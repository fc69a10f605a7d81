from statistics import median

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from stentor.engine.models.speech.alignment import handovers, median_filter, token_times

COSTS = st_numpy.arrays(
    np.float64,
    st.tuples(st.integers(1, 9), st.integers(1, 14)),
    elements=st.integers(-8, 8).map(lambda number: number / 4),
)


def openais(cost: npt.NDArray[np.float64]) -> list[int]:
    """Cell by cell, and ties as OpenAI's own code has them."""
    rows, columns = cost.shape
    best = np.full((rows + 1, columns + 1), np.inf, dtype=np.float32)
    best[0, 0] = 0
    came = np.full((rows + 1, columns + 1), -1)
    for column in range(1, columns + 1):
        for row in range(1, rows + 1):
            both, above, left = best[row - 1, column - 1], best[row - 1, column], best[row, column - 1]
            way = 0 if both < above and both < left else 1 if above < both and above < left else 2
            best[row, column] = cost[row - 1, column - 1] + (both, above, left)[way]
            came[row, column] = way
    came[0, :], came[:, 0] = 2, 1
    row, column = rows, columns
    entered: dict[int, int] = {}
    while row > 0 or column > 0:
        entered[row - 1] = column - 1
        way = int(came[row, column])
        row, column = row - int(way != 2), column - int(way != 1)
    return [entered[row] for row in range(rows)]


@given(COSTS)
def test_handovers_are_those_of_openais_code(cost: npt.NDArray[np.float64]) -> None:
    entered = handovers(cost)
    assert entered == openais(cost)
    assert entered == sorted(entered)
    assert entered[0] == 0


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
