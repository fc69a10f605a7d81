"""The attention without a cache that the tuner tries: Whisper-large's encoder, on eight half minutes of audio at
once."""

from collections.abc import Callable
from functools import partial

import torch

from ..attention.prefill_config import attention_key
from ..attention.prefill_tunables import candidates
from ..tuning import Tunable
from .arguments import VarlenArgs
from .triton import OPERATION, varlen_attention

SEQUENCES, LENGTH, HEADS, DIM = 8, 1500, 20, 64


def tunables() -> list[Tunable]:
    dtype = torch.float16
    key = attention_key(DIM, 1, dtype, dtype, few=False, windowed=False)
    return [Tunable(OPERATION, key, candidates(DIM, dtype, dtype), workload)]


def workload(device: torch.device) -> Callable[[], object]:
    q, k, v = torch.randn((3, SEQUENCES * LENGTH, HEADS, DIM), device=device, dtype=torch.float16)
    starts = torch.arange(SEQUENCES + 1, device=device, dtype=torch.int32) * LENGTH
    return partial(varlen_attention, VarlenArgs(q, k, v, starts, starts, LENGTH, DIM**-0.5, -1, -1, 0.0, None))
