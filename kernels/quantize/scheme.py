"""How activations are quantised, and the quantised result."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

Granularity = Literal["tensor", "token", "group"]

FP8 = torch.float8_e4m3fn
LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
"""The largest magnitude that is used of each dtype."""


@dataclass(frozen=True)
class ActivationScheme:
    """Dtype and granularity of quantised activations. Raises ValueError for a dtype or a group that no kernel takes."""

    dtype: torch.dtype
    """``float8_e4m3fn`` or ``int8``."""
    granularity: Granularity
    """``tensor``: one given scale; ``token``: one per row; ``group``: one for each ``group`` values of a row."""
    group: int = 128

    def __post_init__(self) -> None:
        if self.dtype not in LARGEST:
            raise ValueError(f"ActivationScheme: dtype must be float8_e4m3fn or int8, not {self.dtype}")
        if self.group <= 0 or self.group % 16:
            raise ValueError(f"ActivationScheme: group must be a positive multiple of 16, not {self.group}")


class Quantized(NamedTuple):
    """Quantised activations: ``values * scales`` approximates the original."""

    values: torch.Tensor
    """[T, K] float8_e4m3fn or int8, contiguous."""
    scales: torch.Tensor
    """float32: [1] for granularity ``tensor``, [T, 1] for ``token``, [T, ceil(K / group)] for ``group``."""
