"""What the gated delta rule offers the tuner: that of Qwen3-Next, one token of each of 64 sequences."""

from collections.abc import Callable
from functools import partial

import torch

from ..state_rows import StateRows
from ..tuning import Tunable
from .triton import OPERATION, candidates, delta_key, gated_delta

ROWS, K_HEADS, V_HEADS, DIM = 64, 16, 32, 128


def tunables() -> list[Tunable]:
    return [Tunable(OPERATION, delta_key(DIM), candidates(), workload)]


def workload(device: torch.device) -> Callable[[], object]:
    q, k = torch.randn((2, ROWS, K_HEADS, DIM), dtype=torch.bfloat16, device=device)
    v = torch.randn(ROWS, V_HEADS, DIM, dtype=torch.bfloat16, device=device)
    factor = torch.zeros(ROWS, V_HEADS, device=device)
    state = torch.zeros(ROWS, V_HEADS, DIM, DIM, device=device)
    rows = StateRows.of([1] * ROWS, range(ROWS), range(ROWS), device)
    return partial(gated_delta, q, k, v, factor, factor, state, rows, DIM**-0.5, True)
