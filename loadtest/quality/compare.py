"""Two sets of log-probabilities of the same tokens, in a few numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .ours import Scores

_LEAST_MASS = 1e-9
"""What the unlisted tokens are taken to have at least: float32 sums to 1 no more exactly than that."""


@dataclass(frozen=True)
class Agreement:
    """``difference``: our perplexity over the reference's, minus 1; ``error`` is its standard error.

    Divergences are KL(reference ‖ ours) in nats at a position, with all tokens that we do not list taken as one:
    at most the true one.
    """

    positions: int
    perplexity: float
    reference_perplexity: float
    difference: float
    error: float
    same_greedy: float
    """Share of positions where both think the same token likeliest."""
    divergence_mean: float
    divergence_p99: float

    def within(self, limit: float) -> bool:
        """Whether the perplexities differ by at most the share ``limit``; never for what is not a number."""
        return abs(self.difference) <= limit


class Comparison:
    def __init__(self) -> None:
        self._windows: list[tuple[npt.NDArray[Any], ...]] = []

    def add(self, window: Sequence[int], ours: Scores, theirs: torch.Tensor) -> None:
        """One window; ``theirs`` is the reference's [positions, vocabulary]."""
        following = torch.tensor(list(window[1:]))
        if len(ours.logprobs) != len(following) or theirs.shape[0] != len(following):
            raise ValueError(f"expected {len(following)} positions, got {len(ours.logprobs)} and {theirs.shape[0]}")
        actual = theirs.gather(1, following[:, None])[:, 0].double().numpy()
        same = theirs.argmax(1).numpy() == ours.top_ids[:, 0]
        listed = theirs.gather(1, torch.from_numpy(ours.top_ids)).double().numpy()
        self._windows.append((ours.logprobs, actual, same, divergence(listed, ours.top_logprobs)))

    def result(self) -> Agreement:
        ours, theirs, same, divergences = map(np.concatenate, zip(*self._windows, strict=True))
        losses = theirs - ours
        ratio = math.exp(float(losses.mean()))
        return Agreement(
            positions=len(ours),
            perplexity=math.exp(-float(ours.mean())),
            reference_perplexity=math.exp(-float(theirs.mean())),
            difference=ratio - 1,
            error=ratio * float(losses.std()) / math.sqrt(len(losses)),
            same_greedy=float(same.mean()),
            divergence_mean=float(divergences.mean()),
            divergence_p99=float(np.percentile(divergences, 99)),
        )


def divergence(theirs: npt.NDArray[np.float64], ours: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """KL(theirs ‖ ours) of each position from the log-probabilities [positions, listed] of the same tokens."""
    theirs_rest = np.maximum(1 - np.exp(theirs).sum(axis=1), _LEAST_MASS)
    ours_rest = np.maximum(1 - np.exp(ours).sum(axis=1), _LEAST_MASS)
    listed = (np.exp(theirs) * (theirs - ours)).sum(axis=1)
    found: npt.NDArray[np.float64] = listed + theirs_rest * np.log(theirs_rest / ours_rest)
    return np.maximum(found, 0.0)
