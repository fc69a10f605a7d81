"""The gated delta rules that the tuner tries: Qwen3-Next's, for one token of each of 64 sequences and for a long
prompt, and Kimi Linear's for such a prompt."""

from collections.abc import Callable
from functools import partial

import torch

from ..state_rows import StateRows
from ..tuning import Tunable, Workload
from . import reference, triton_chunks
from .triton import OPERATION, candidates, delta_key, gated_delta

K_HEADS, V_HEADS, DIM = 16, 32, 128


def tunables() -> list[Tunable]:
    return [
        Tunable(OPERATION, delta_key(DIM), candidates(), *_both(64, 1, False)),
        *(
            Tunable(
                triton_chunks.OPERATION,
                triton_chunks.chunks_key(DIM, torch.bfloat16, by_channel),
                triton_chunks.candidates(),
                *_both(1, 8192, by_channel),
            )
            for by_channel in (False, True)
        ),
    ]


def _both(count: int, length: int, by_channel: bool) -> tuple[Workload, Workload]:
    shape = count, length, by_channel
    return partial(_workload, *shape, gated_delta), partial(_workload, *shape, reference.gated_delta)


def _workload(
    count: int, length: int, by_channel: bool, run: Callable[..., torch.Tensor], device: torch.device
) -> Callable[[], object]:
    tokens = count * length
    k_heads, channels = (V_HEADS, (DIM,)) if by_channel else (K_HEADS, ())
    q, k = torch.randn((2, tokens, k_heads, DIM), dtype=torch.bfloat16, device=device)
    v = torch.randn(tokens, V_HEADS, DIM, dtype=torch.bfloat16, device=device)
    decay, factor = -torch.rand(tokens, V_HEADS, *channels, device=device), torch.rand(tokens, V_HEADS, device=device)
    state = torch.zeros(count, V_HEADS, DIM, DIM, device=device)
    rows = StateRows.of([length] * count, range(count), range(count), device)
    return lambda: (run(q, k, v, decay, factor, state, rows, DIM**-0.5, True), state)
