"""The experts that the tuner tries: those of Qwen3-30B-A3B, Mixtral-8x7B and gpt-oss-120b."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ..linear_coded import CodedMatrices, empty_coded
from ..tuning import Tunable
from . import triton_rows, triton_tiles
from .operands import Operands, Run

SIZES = ((128, 8, 2048, 768), (8, 2, 4096, 14336), (128, 4, 2880, 2880))
"""(experts, top_k, hidden, inner)"""
CODED = ((128, 4, 2880, 2880),)
"""Sizes that are also tried in MXFP4."""
FEW = (1, 4, 8)
"""Numbers of tokens."""
ROWS = (16, 64, 256, 1024)
"""Rows per expert."""


def tunables() -> list[Tunable]:
    found = []
    for sizes, coded in (*((sizes, False) for sizes in SIZES), *((sizes, True) for sizes in CODED)):
        for tokens in FEW:
            shown = _operands(sizes, coded, tokens, torch.device("meta"))
            key, candidates = triton_rows.key(shown), triton_rows.candidates(shown)
            workload = partial(_workload, triton_rows.prepare_rows, sizes, coded, tokens, False)
            found.append(Tunable(triton_rows.OPERATION, key, candidates, workload))
        for rows, invariant in (*((rows, False) for rows in ROWS), (ROWS[0], True)):
            tokens = rows * sizes[0] // sizes[1]
            shown = _operands(sizes, coded, tokens, torch.device("meta"), invariant)
            key, candidates = triton_tiles.key(shown), triton_tiles.candidates(shown)
            workload = partial(_workload, triton_tiles.prepare_tiles, sizes, coded, tokens, invariant)
            found.append(Tunable(triton_tiles.OPERATION, key, candidates, workload))
    return found


def _operands(
    sizes: tuple[int, int, int, int], coded: bool, tokens: int, device: torch.device, invariant: bool = False
) -> Operands:
    experts, top_k, hidden, inner = sizes

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.bfloat16, device=device)

    def matrices(outputs: int, inputs: int) -> Tensor | CodedMatrices:
        if not coded:
            return drawn(experts, outputs, inputs)
        found = empty_coded("mxfp4", experts, outputs, inputs, group=32, device=device)
        found.codes.random_(0, 256)
        found.scales.fill_(120)
        return found

    return Operands(
        x=drawn(tokens, hidden),
        chosen=torch.rand(tokens, experts, device=device).topk(top_k, dim=1).indices.int(),
        factors=torch.rand(tokens, top_k, device=device),
        gate_up=matrices(2 * inner, hidden),
        down=matrices(hidden, inner),
        activation="silu",
        invariant=invariant,
    )


def _workload(
    prepare: Callable[[Operands], Run],
    sizes: tuple[int, int, int, int],
    coded: bool,
    tokens: int,
    invariant: bool,
    device: torch.device,
) -> Callable[[], object]:
    of = _operands(sizes, coded, tokens, device, invariant)
    return lambda: prepare(of)(of)  # prepared anew each time: block sizes change between calls
