"""How activations are quantised, and what comes of it."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

Granularity = Literal["tensor", "token", "group"]

FP8 = torch.float8_e4m3fn
LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
"""Of what a quantised value can hold, the largest that is used."""


@dataclass(frozen=True)
class ActivationScheme:
    """Raises ValueError for a dtype or a group that no kernel takes."""

    dtype: torch.dtype
    """``float8_e4m3fn`` or ``int8``."""
    granularity: Granularity
    """``tensor``: one given scale; ``token``: one a row; ``group``: one for each ``group`` values of a row."""
    group: int = 128

    def __post_init__(self) -> None:
        if self.dtype not in LARGEST:
            raise ValueError(f"ActivationScheme: dtype must be float8_e4m3fn or int8, not {self.dtype}")
        if self.group <= 0 or self.group % 16:
            raise ValueError(f"ActivationScheme: group must be a positive multiple of 16, not {self.group}")


class Quantized(NamedTuple):
    """``values * scales`` is what they stand for."""

    values: torch.Tensor
    """[T, K] float8_e4m3fn or int8, contiguous."""
    scales: torch.Tensor
    """float32: [1] for granularity ``tensor``, [T, 1] for ``token``, [T, ceil(K / group)] for ``group``."""
