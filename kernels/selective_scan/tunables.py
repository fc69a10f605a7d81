"""The selective scan that the tuner tries: that of Falcon Mamba and Jamba, for one token of each of 64 sequences."""

from collections.abc import Callable
from functools import partial

import torch

from ..state_rows import StateRows
from ..tuning import Tunable
from . import reference
from .triton import OPERATION, candidates, scan_key, selective_scan

CHANNELS, STATE_DIM, ROWS = 8192, 16, 64


def tunables() -> list[Tunable]:
    return [
        Tunable(
            OPERATION,
            scan_key(STATE_DIM),
            candidates(),
            partial(_workload, selective_scan),
            partial(_workload, reference.selective_scan),
        )
    ]


def _workload(run: Callable[..., torch.Tensor], device: torch.device) -> Callable[[], object]:
    x, gate, dt = torch.randn((3, ROWS, CHANNELS), dtype=torch.bfloat16, device=device)
    B, C = torch.randn((2, ROWS, STATE_DIM), dtype=torch.bfloat16, device=device)
    factor, A = torch.rand(CHANNELS, device=device), -torch.rand(STATE_DIM, CHANNELS, device=device)
    state = torch.zeros(ROWS, STATE_DIM, CHANNELS, device=device)
    rows = StateRows.of([1] * ROWS, range(ROWS), range(ROWS), device)
    return lambda: (run(x, gate, dt, factor, A, B, C, factor, state, rows), state)
