"""Word timing: aligns tokens with audio by cross-attention weights and dynamic time warping."""

from collections.abc import Iterable

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from ...model_config.speech.whisper import SECONDS_PER_POSITION

_LEAST = 1e-12
"""Lower bound of a standard deviation."""


class Aligned(msgspec.Struct, frozen=True):
    """The alignment of a row's n tokens."""

    times: list[float]
    """n + 1 seconds: the beginning of each token, and the end of the last."""
    probabilities: list[float]
    """n: probability of each token given those before it, among text tokens."""


def token_times(weights: Iterable[torch.Tensor], first: int, width: int) -> list[float]:
    """Attention weights [rows, positions] of each head → seconds at which the predictions of rows [first, rows) begin.

    Weights are normalised across rows, smoothed by a median of ``width`` positions and averaged over heads, one in
    memory at a time. The best monotonic path through them gives the transitions from one row to the next.
    """
    total, count = torch.zeros(()), 0  # on the device of the first head
    for head in weights:
        deviation, mean = torch.std_mean(head, dim=0, correction=0)
        total = total + median_filter((head - mean) / deviation.clamp(min=_LEAST), width)
        count += 1
    matrix = (total / count)[first:]
    return [position * SECONDS_PER_POSITION for position in handovers(-matrix.double().cpu().numpy())]


def median_filter(values: torch.Tensor, width: int) -> torch.Tensor:
    """Medians over ``width`` (odd) values of the last dimension, mirrored at its ends."""
    reach, length = width // 2, values.shape[-1]
    if not reach or length <= reach:
        return values
    padded = torch.nn.functional.pad(values, (reach, reach), mode="reflect")
    shifted = [padded[..., first : first + length] for first in range(width)]
    # The least and the greatest of more than half of the values cannot be the median and are replaced by another.
    kept = shifted[: reach + 2]
    for following in [*shifted[reach + 2 :], None]:
        for i in range(1, len(kept)):
            kept[0], kept[i] = torch.minimum(kept[0], kept[i]), torch.maximum(kept[0], kept[i])
        for i in range(1, len(kept) - 1):
            kept[i], kept[-1] = torch.minimum(kept[i], kept[-1]), torch.maximum(kept[i], kept[-1])
        kept = kept[1:-1] if following is None else [*kept[1:-1], following]
    return kept[0]


def handovers(cost: npt.NDArray[np.float64]) -> list[int]:
    """The column at which the cheapest path from the first cell to the last enters each row.

    A path goes right, down, or both; down or both only if strictly cheaper than the alternatives, as in OpenAI's code.
    """
    came = _ways(cost)
    row, column = len(cost) - 1, cost.shape[1] - 1
    entered = [0] * len(cost)
    while row >= 0 and column >= 0:
        entered[row] = column
        way = came[row, column] if row and column else (1 if row else 2)
        row -= int(way != 2)
        column -= int(way != 1)
    return entered


def _ways(cost: npt.NDArray[np.float64]) -> npt.NDArray[np.int8]:
    """The best predecessor of each cell: 0 diagonal, 1 above, 2 left. Computed by diagonals."""
    rows, columns = cost.shape
    came = np.full((rows, columns), 2, dtype=np.int8)
    infinite = np.float32(np.inf)
    # best[i] of a diagonal is the cell in row i - 1; row 0 is outside
    before, last = np.full(rows + 1, infinite), np.full(rows + 1, infinite)
    before[0] = 0
    for diagonal in range(rows + columns - 1):
        low, high = max(0, diagonal - columns + 1), min(rows, diagonal + 1)
        row = np.arange(low, high)
        both, above, left = before[low:high], last[low:high], last[low + 1 : high + 1]
        way = np.where((both < above) & (both < left), 0, np.where((above < both) & (above < left), 1, 2))
        best = np.choose(way, (both, above, left))
        came[row, diagonal - row] = way
        now = np.full(rows + 1, infinite)
        now[low + 1 : high + 1] = (cost[row, diagonal - row] + best).astype(np.float32)
        before, last = last, now
    return came
