"""The numbers that decide a draw, one entry per row, and how they are computed from a request's parameters."""

import math
from dataclasses import dataclass

import torch

from .noise import signed

MASS_BITS = 40
"""Top-p sums integer masses: the probability of a token relative to the most likely one, times 2**40, truncated."""

_LEAST_INVERSE = 1e-30
_MOST_INVERSE = 1e30


@dataclass(frozen=True)
class SlotParams:
    """Tables over slots, all on one device, contiguous, of shape [slots].

    :meth:`set` writes a slot's entries and ``draw`` reads them.
    """

    inverse_temperature: torch.Tensor
    """float32; 0 is greedy."""
    top_k: torch.Tensor
    """int64; 0 keeps all."""
    min_p_threshold: torch.Tensor
    """float32, at most 0: min-p as a distance, ``temperature * ln(min_p)``. A token is kept if its logit minus the
    largest is at least this. -inf keeps all."""
    top_p: torch.Tensor
    """float64; 1 keeps all."""
    seed: torch.Tensor
    """int64: the bit pattern of an unsigned 64-bit seed."""

    @classmethod
    def empty(cls, slots: int, device: torch.device) -> "SlotParams":
        """Returns tables whose every slot is greedy."""
        return cls(
            inverse_temperature=torch.zeros(slots, dtype=torch.float32, device=device),
            top_k=torch.zeros(slots, dtype=torch.int64, device=device),
            min_p_threshold=torch.full((slots,), -math.inf, dtype=torch.float32, device=device),
            top_p=torch.ones(slots, dtype=torch.float64, device=device),
            seed=torch.zeros(slots, dtype=torch.int64, device=device),
        )

    def of(self, slots: torch.Tensor) -> "SlotParams":
        """Returns the entries of ``slots`` [R] int64, one a row."""
        every = (self.inverse_temperature, self.top_k, self.min_p_threshold, self.top_p, self.seed)
        return SlotParams(*(each[slots] for each in every))

    def set(self, slot: int, *, temperature: float, top_k: int, top_p: float, min_p: float, seed: int) -> None:
        """Writes one slot. ``seed`` is an unsigned 64-bit number. Any temperature above 0, however small, still
        draws."""
        inverse = inverse_of(temperature)
        self.inverse_temperature[slot] = inverse
        self.top_k[slot] = top_k
        self.min_p_threshold[slot] = min_p_threshold_of(min_p, inverse)
        self.top_p[slot] = top_p
        self.seed[slot] = signed(seed)


def inverse_of(temperature: float) -> float:
    """Returns the factor of the logits; 0 is greedy."""
    if temperature <= 0.0:
        return 0.0
    return min(max(1.0 / max(temperature, _LEAST_INVERSE), _LEAST_INVERSE), _MOST_INVERSE)


def min_p_threshold_of(min_p: float, inverse: float) -> float:
    """Returns the lowest distance to the largest logit that min-p keeps, at most 0."""
    return min(math.log(min_p), 0.0) / inverse if inverse and min_p > 0.0 else -math.inf
