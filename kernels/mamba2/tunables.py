"""What the state space of Mamba-2 offers the tuner: that of Nemotron-H, one token of each of 64 sequences."""

from collections.abc import Callable
from functools import partial

import torch

from ..state_rows import StateRows
from ..tuning import Tunable
from .triton import OPERATION, candidates, mamba2, mamba_key

ROWS, HEADS, GROUPS, HEAD_DIM, STATE_DIM = 64, 128, 8, 64, 128


def tunables() -> list[Tunable]:
    return [Tunable(OPERATION, mamba_key(STATE_DIM), candidates(), workload)]


def workload(device: torch.device) -> Callable[[], object]:
    x = torch.randn(ROWS, HEADS, HEAD_DIM, dtype=torch.bfloat16, device=device)
    B, C = torch.randn((2, ROWS, GROUPS, STATE_DIM), dtype=torch.bfloat16, device=device)
    dt, factor = torch.zeros(ROWS, HEADS, device=device), torch.zeros(HEADS, device=device)
    state = torch.zeros(ROWS, HEADS, HEAD_DIM, STATE_DIM, device=device)
    rows = StateRows.of([1] * ROWS, range(ROWS), range(ROWS), device)
    return partial(mamba2, x, dt, factor, B, C, factor, state, rows)
