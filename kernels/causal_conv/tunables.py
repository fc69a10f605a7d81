"""The short convolutions that the tuner tries: Qwen3-Next's, for one token of each sequence and for a long prompt."""

from collections.abc import Callable
from functools import partial

import torch

from ..state_rows import StateRows
from ..tuning import Tunable
from . import reference
from .triton import OPERATION, candidates, causal_conv, conv_key

CHANNELS, WIDTH = 8192, 4


def tunables() -> list[Tunable]:
    return [_tunable(64, 1), _tunable(1, 8192)]


def _tunable(count: int, length: int) -> Tunable:
    def workload(run: Callable[..., torch.Tensor], device: torch.device) -> Callable[[], object]:
        x = torch.randn(count * length, CHANNELS, dtype=torch.bfloat16, device=device)
        weight = torch.randn(CHANNELS, WIDTH, dtype=x.dtype, device=device)
        state = torch.zeros(count, CHANNELS, WIDTH - 1, dtype=x.dtype, device=device)
        rows = StateRows.of([length] * count, range(count), range(count), device)
        return lambda: (run(x, weight, None, state, rows, "silu"), state)

    variants = partial(workload, causal_conv), partial(workload, reference.causal_conv)
    return Tunable(OPERATION, conv_key(WIDTH, length == 1), candidates(length == 1), *variants)
