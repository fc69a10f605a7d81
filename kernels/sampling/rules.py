"""The numbers that decide a draw, one entry per row, and how they follow from a request's parameters."""

import math
from dataclasses import dataclass

import torch

MASS_BITS = 40
"""Top-p sums integer masses: the probability of a token relative to the most likely one, times 2**40, cut."""

_LEAST_INVERSE = 1e-30
_MOST_INVERSE = 1e30


@dataclass(frozen=True)
class DrawRules:
    """Tables over slots; all on one device, contiguous, shape [slots].

    A slot's entries are written by :meth:`set` and read by ``draw``.
    """

    inverse_temperature: torch.Tensor
    """float32; 0 is greedy."""
    top_k: torch.Tensor
    """int64; 0 keeps all."""
    reach: torch.Tensor
    """float32, at most 0: min-p as a distance, ``temperature * ln(min_p)``; a token is kept when its
    logit minus the largest is at least this. -inf keeps all."""
    top_p: torch.Tensor
    """float64; 1 keeps all."""
    seed: torch.Tensor
    """int64: the bit pattern of an unsigned 64-bit seed."""

    @classmethod
    def empty(cls, slots: int, device: torch.device) -> "DrawRules":
        """Tables whose every slot is greedy."""
        return cls(
            inverse_temperature=torch.zeros(slots, dtype=torch.float32, device=device),
            top_k=torch.zeros(slots, dtype=torch.int64, device=device),
            reach=torch.full((slots,), -math.inf, dtype=torch.float32, device=device),
            top_p=torch.ones(slots, dtype=torch.float64, device=device),
            seed=torch.zeros(slots, dtype=torch.int64, device=device),
        )

    def set(self, slot: int, *, temperature: float, top_k: int, top_p: float, min_p: float, seed: int) -> None:
        """Writes one slot. ``seed`` is unsigned 64 bits. A temperature above 0, however small, still draws."""
        inverse = 0.0
        if temperature > 0.0:
            inverse = min(max(1.0 / max(temperature, _LEAST_INVERSE), _LEAST_INVERSE), _MOST_INVERSE)
        self.inverse_temperature[slot] = inverse
        self.top_k[slot] = top_k
        self.reach[slot] = min(math.log(min_p), 0.0) / inverse if inverse and min_p > 0.0 else -math.inf
        self.top_p[slot] = top_p
        self.seed[slot] = seed - (1 << 64) if seed >> 63 else seed
