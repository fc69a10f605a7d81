"""Matrices of random codes."""

import torch

from stentor.kernels import CodedMatrices, CodeKind, empty_coded
from stentor.kernels.linear_coded.blocks import BlockKind, coded_blocks, empty_blocks
from stentor.tests.kernels.gpu import DEVICE
from stentor.tests.kernels.test_linear_gguf import random_blocks

CODES: list[tuple[CodeKind, int, int, bool]] = [
    ("mxfp4", 32, 1, False),
    ("nvfp4", 16, 1, False),
    ("int4", 16, 1, False),
    ("int4", 0, 1, True),
    ("int4", 64, 1, True),
    ("fp8", 32, 16, False),
    ("fp8", 0, 1, False),
    ("iq4nl", 32, 1, False),
    ("int8", 16, 1, True),
    ("int8", 32, 1, False),
    ("int8", 0, 1, True),
]
"""Kind, inputs (0: all) and outputs that share a scale, and whether there are zeros."""
_SPREAD: dict[CodeKind, int] = {"iq4nl": 16, "int8": 16}
"""How much further apart codes are than those of int4."""


def coded_of_blocks(stored: BlockKind, count: int, outputs: int, inputs: int, seed: int) -> CodedMatrices:
    """Of random blocks of GGUF."""
    made = empty_blocks(stored, count, outputs, inputs, torch.device(DEVICE))
    for number in range(count):
        blocks = random_blocks(stored, outputs, inputs, seed=seed * count + number)
        made.put_(number, 0, coded_blocks(blocks.to(DEVICE), stored))
    return made


def coded(
    kind: CodeKind, count: int, outputs: int, inputs: int, group: int, rows: int, zeros: bool, seed: int
) -> CodedMatrices:
    """Of all codes, with scales that leave products near 1."""
    made = empty_coded(
        kind, count, outputs, inputs, device=torch.device(DEVICE), group=group or inputs, rows=rows, zeros=zeros
    )
    draw = torch.Generator().manual_seed(seed)
    if kind == "fp8":
        made.codes.copy_(torch.randn(made.codes.shape, generator=draw))
    else:
        made.codes.copy_(torch.randint(0, 256, made.codes.shape, generator=draw, dtype=torch.uint8))
    if kind == "mxfp4":
        made.scales.copy_(torch.randint(120, 126, made.scales.shape, generator=draw, dtype=torch.uint8))
    else:
        made.scales.copy_((torch.rand(made.scales.shape, generator=draw) * 0.05 + 0.02) / _SPREAD.get(kind, 1))
    if made.factors is not None:
        made.factors.copy_(torch.rand(made.factors.shape, generator=draw) + 0.5)
    if made.zeros is not None:
        most = 17 if kind == "int4" else 257
        made.zeros.copy_(torch.randint(0, most, made.zeros.shape, generator=draw, dtype=made.zeros.dtype))
    return made
