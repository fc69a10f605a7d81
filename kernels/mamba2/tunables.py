"""The Mamba-2 recurrences that the tuner tries: Nemotron-H's, for one token of each of 64 sequences and for a long
prompt."""

from collections.abc import Callable
from functools import partial

import torch

from ..state_rows import StateRows
from ..tuning import Tunable, Workload
from . import reference, triton_chunks
from .triton import OPERATION, candidates, mamba2, mamba_key

HEADS, GROUPS, HEAD_DIM, STATE_DIM = 128, 8, 64, 128


def tunables() -> list[Tunable]:
    prompt_key = triton_chunks.chunks_key(STATE_DIM, torch.bfloat16)
    return [
        Tunable(OPERATION, mamba_key(STATE_DIM), candidates(), *_both(64, 1)),
        Tunable(triton_chunks.OPERATION, prompt_key, triton_chunks.candidates(), *_both(1, 8192)),
    ]


def _both(count: int, length: int) -> tuple[Workload, Workload]:
    return partial(_workload, count, length, mamba2), partial(_workload, count, length, reference.mamba2)


def _workload(count: int, length: int, run: Callable[..., torch.Tensor], device: torch.device) -> Callable[[], object]:
    tokens = count * length
    x = torch.randn(tokens, HEADS, HEAD_DIM, dtype=torch.bfloat16, device=device)
    B, C = torch.randn((2, tokens, GROUPS, STATE_DIM), dtype=torch.bfloat16, device=device)
    dt, factor = torch.rand(tokens, HEADS, device=device), torch.rand(HEADS, device=device)
    state = torch.zeros(count, HEADS, HEAD_DIM, STATE_DIM, device=device)
    rows = StateRows.of([length] * count, range(count), range(count), device)
    return lambda: (run(x, dt, -factor, B, C, factor, state, rows), state)
