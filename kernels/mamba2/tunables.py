"""The Mamba-2 recurrences that the tuner tries: Nemotron-H's, for one token of each of 64 sequences and for a long
prompt."""

from collections.abc import Callable
from functools import partial

import torch

from ..state_rows import StateRows
from ..tuning import Tunable
from . import triton_chunks
from .triton import OPERATION, candidates, mamba2, mamba_key

HEADS, GROUPS, HEAD_DIM, STATE_DIM = 128, 8, 64, 128


def tunables() -> list[Tunable]:
    prompt_key = triton_chunks.chunks_key(STATE_DIM, torch.bfloat16)
    return [
        Tunable(OPERATION, mamba_key(STATE_DIM), candidates(), partial(_workload, 64, 1)),
        Tunable(triton_chunks.OPERATION, prompt_key, triton_chunks.candidates(), partial(_workload, 1, 8192)),
    ]


def _workload(count: int, length: int, device: torch.device) -> Callable[[], object]:
    tokens = count * length
    x = torch.randn(tokens, HEADS, HEAD_DIM, dtype=torch.bfloat16, device=device)
    B, C = torch.randn((2, tokens, GROUPS, STATE_DIM), dtype=torch.bfloat16, device=device)
    dt, factor = torch.zeros(tokens, HEADS, device=device), torch.zeros(HEADS, device=device)
    state = torch.zeros(count, HEADS, HEAD_DIM, STATE_DIM, device=device)
    rows = StateRows.of([length] * count, range(count), range(count), device)
    return partial(mamba2, x, dt, factor, B, C, factor, state, rows)
