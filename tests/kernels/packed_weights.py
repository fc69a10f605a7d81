"""Weights of every packed kind, with random contents."""

import torch
from torch import Tensor

from stentor.kernels.linear_packed import PackedKind, PackedWeight, empty_packed, pack_codes_, pack_plain_
from stentor.kernels.linear_packed.weight import BLOCK, FOUR_BITS, MINS, PARTS, SCALES, TABLES
from stentor.tests.kernels.helpers import normal

KINDS: tuple[tuple[PackedKind, bool], ...] = (
    ("f32", False),
    ("bf16", False),
    ("q4", False),
    ("q4m", False),
    ("q4m", True),
    ("q8", False),
    ("q8", True),
    ("q8h", False),
    ("q8h", True),
    ("q8m", False),
    ("q8m", True),
    ("iq4nl", False),
    ("mxfp4", False),
    ("nvfp4", False),
)
"""Each with whether its scales are in single precision."""


def codes_and_scales(kind: PackedKind, outputs: int, inputs: int, seed: int) -> tuple[Tensor, Tensor]:
    """uint8 [outputs, inputs] and float32 [outputs, blocks, parts], of weights about as large as 1 / √inputs.

    Scales that are kept as bytes are such bytes.
    """
    generator = torch.Generator().manual_seed(seed)
    most = 16 if kind in FOUR_BITS else 256
    codes = torch.randint(0, most, (outputs, inputs), dtype=torch.uint8, generator=generator)
    scales = torch.rand(outputs, -(-inputs // BLOCK), PARTS[kind], generator=generator) + 0.5
    scales *= 3.0 / ((2 * max(TABLES[kind]) if kind in TABLES else most) * inputs**0.5)
    if kind in MINS:
        scales[:, :, 1] *= -7.5 if kind == "q4m" else -3.0
    return codes, scales.to(SCALES.get(kind, torch.float32)).float()


def factors_of(kind: PackedKind, outputs: int, seed: int) -> Tensor | None:
    """Of each output of a kind that has them."""
    if kind != "nvfp4":
        return None
    return torch.rand(outputs, generator=torch.Generator().manual_seed(seed)) + 0.5


def packed_weight(kind: PackedKind, outputs: int, inputs: int, *, wide: bool = False, seed: int = 0) -> PackedWeight:
    weight = empty_packed(outputs, inputs, kind, wide=wide)
    if kind in ("f32", "bf16"):
        pack_plain_(weight, 0, normal(outputs, inputs, seed=seed) / inputs**0.5)
    else:
        pack_codes_(weight, 0, *codes_and_scales(kind, outputs, inputs, seed), factors_of(kind, outputs, seed))
    return weight
