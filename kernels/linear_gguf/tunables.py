"""The GGUF weights that the tuner tries: the types of the common ``Q4_K_M`` files, ``Q8_0`` and ``Q4_0``."""

from collections.abc import Callable

import torch

from ..linear_w4.planes import Planes
from ..linear_w4.tunables import planes_tunables
from ..tuning import Tunable
from .weight import FORMATS, GGUFWeight, Kind

# Llama-3.1-8B. Gate and up are fused only if they are of one type; so are q, k and v.
SHAPES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
"""(N, K)"""
KINDS: tuple[Kind, ...] = ("Q4_K", "Q6_K", "Q8_0", "Q4_0")


def tunables() -> list[Tunable]:
    return [tunable for shape in SHAPES for kind in KINDS for tunable in planes_tunables(shape, _random(kind))]


def _random(kind: Kind) -> Callable[[tuple[int, int], torch.device], Planes]:
    def make(shape: tuple[int, int], device: torch.device) -> Planes:
        form = FORMATS[kind]
        size = (shape[0], shape[1] // form.columns * form.nbytes)
        if device.type == "meta":
            return GGUFWeight.from_blocks(torch.empty(size, dtype=torch.uint8, device=device), kind).planes
        # bytes that are never 0x7c or 0xfc, so that no scale is infinite
        blocks = torch.randint(0, 0x3C, size, dtype=torch.uint8, device=device)
        return GGUFWeight.from_blocks(blocks, kind).planes

    return make
