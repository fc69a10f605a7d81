"""Weights of every packed kind, with random contents."""

import torch
from torch import Tensor

from stentor.kernels.linear_packed import PackedKind, PackedWeight, Scaling, empty_packed, pack_codes_, pack_plain_
from stentor.kernels.linear_packed.weight import FOUR_BITS, MINS, PARTS, SCALES, TABLES
from stentor.tests.kernels.helpers import normal

USUAL, SIGNED = Scaling(), Scaling(torch.int8)
KINDS: tuple[tuple[PackedKind, Scaling], ...] = (
    ("f32", USUAL),
    ("bf16", USUAL),
    ("q4", USUAL),
    ("q4m", USUAL),
    ("q4z", Scaling(torch.float16, 32, zeros=True)),
    ("q4z", Scaling(torch.bfloat16, 64)),
    ("q4z", Scaling(torch.float32, 128, zeros=True)),
    ("q8", USUAL),
    ("q8", Scaling(torch.bfloat16, 64)),
    ("q8", Scaling(torch.float32, 0)),
    ("q4m", Scaling(torch.uint8)),
    ("q8h", SIGNED),
    ("q8m", USUAL),
    ("q8m", Scaling(torch.uint8)),
    ("q8z", Scaling(torch.float16, 64, zeros=True)),
    ("q8z", Scaling(torch.bfloat16, 0, zeros=True)),
    ("q8z", Scaling(torch.float32)),
    ("iq4nl", USUAL),
    ("mxfp4", USUAL),
    ("nvfp4", USUAL),
)
"""Each with how its scales are kept."""


def codes_and_scales(
    kind: PackedKind, outputs: int, inputs: int, seed: int, scaling: Scaling = USUAL
) -> tuple[Tensor, Tensor]:
    """uint8 [outputs, inputs] and float32 [outputs, groups, parts], of weights about as large as 1 / √inputs.

    Scales are such as are kept exactly where they are not in half precision.
    """
    generator = torch.Generator().manual_seed(seed)
    most = 16 if kind in FOUR_BITS else 256
    codes = torch.randint(0, most, (outputs, inputs), dtype=torch.uint8, generator=generator)
    scales = torch.rand(outputs, -(-inputs // (scaling.group or inputs)), PARTS[kind], generator=generator) + 0.5
    scales *= 3.0 / ((2 * max(TABLES[kind]) if kind in TABLES else most) * inputs**0.5)
    if kind in MINS:
        scales[:, :, 1] *= -7.5 if kind == "q4m" else -3.0
    if scaling.dtype in (torch.uint8, torch.int8):
        return codes, torch.randint(
            -20 if scaling.dtype == torch.int8 else 1, 64, scales.shape, generator=generator
        ).float()
    kept = scaling.dtype if scaling.dtype == torch.bfloat16 else SCALES.get(kind, torch.float32)
    return codes, scales.to(kept).float()


def zeros_of(kind: PackedKind, outputs: int, inputs: int, seed: int, scaling: Scaling) -> Tensor | None:
    """Of each group of a weight that has them, the largest among them."""
    if not scaling.zeros:
        return None
    most, groups = 17 if kind == "q4z" else 257, -(-inputs // (scaling.group or inputs))
    drawn = torch.randint(0, most, (outputs, groups), generator=torch.Generator().manual_seed(seed))
    drawn[0, 0] = most - 1
    return drawn


def factors_of(kind: PackedKind, outputs: int, seed: int) -> Tensor | None:
    """Of each output of a kind that has them."""
    if kind != "nvfp4":
        return None
    return torch.rand(outputs, generator=torch.Generator().manual_seed(seed)) + 0.5


def spans_of(kind: PackedKind, outputs: int, inputs: int, seed: int, scaling: Scaling) -> Tensor | None:
    """Factors of whole scales."""
    if scaling.dtype not in (torch.uint8, torch.int8):
        return None
    most, parts = 16 if kind in FOUR_BITS else 256, 2 if kind in MINS else 1
    drawn = torch.rand(outputs, -(-inputs // 256), parts, generator=torch.Generator().manual_seed(seed)) + 0.5
    drawn *= 0.1 / (most * inputs**0.5)
    if kind in MINS:
        drawn[:, :, 1] *= -7.5 if kind == "q4m" else -3.0
    return drawn.half().float()


def packed_weight(
    kind: PackedKind, outputs: int, inputs: int, *, scaling: Scaling = USUAL, seed: int = 0
) -> PackedWeight:
    weight = empty_packed(outputs, inputs, kind, scaling=scaling)
    if kind in ("f32", "bf16"):
        pack_plain_(weight, 0, normal(outputs, inputs, seed=seed) / inputs**0.5)
    else:
        codes, scales = codes_and_scales(kind, outputs, inputs, seed, scaling)
        zeros = zeros_of(kind, outputs, inputs, seed, scaling)
        spans = spans_of(kind, outputs, inputs, seed, scaling)
        pack_codes_(weight, 0, codes, scales, factors_of(kind, outputs, seed), zeros, spans)
    return weight
