"""The embeddings that the tuner tries: the tables of Llama-3.1-8B and Qwen3-32B."""

from collections.abc import Callable
from functools import partial

import torch

from ..tuning import Config, Tunable, by_reference
from . import embedding

TOKENS = 4096
_TILES = [Config.of(BLOCK=block, num_warps=warps) for block in (512, 1024, 2048, 4096) for warps in (1, 2, 4, 8)]


def tunables() -> list[Tunable]:
    tables = ((128256, 4096), (151936, 5120))
    return [
        Tunable("embedding", f"{hidden} bfloat16", _TILES, workload, by_reference(workload))
        for vocabulary, hidden in tables
        for workload in [partial(_workload, vocabulary, hidden)]
    ]


def _workload(vocabulary: int, hidden: int, device: torch.device) -> Callable[[], object]:
    table = torch.randn(vocabulary, hidden, dtype=torch.bfloat16, device=device)
    tokens = torch.randint(vocabulary, (TOKENS,), device=device)
    return partial(embedding, tokens, table)
