"""The gated activations that the tuner tries: the inner sizes of Llama-3.1-8B and Qwen3-32B."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from ..quantize.scheme import FP8, ActivationScheme
from ..tuning import Config, Tunable, by_reference
from .gated import gated_activation
from .quantized import gated_activation_quantized

TOKENS = 4096
_TILES = [Config.of(BLOCK=block, num_warps=warps) for block in (512, 1024, 2048, 4096) for warps in (2, 4, 8)]
_ROWS = [Config.of(num_warps=warps) for warps in (8, 16, 32)]


def tunables() -> list[Tunable]:
    found = []
    for inner in (14336, 25600):
        key = f"{inner} bfloat16"
        by_group, by_token = ActivationScheme(FP8, "group"), ActivationScheme(FP8, "token")
        found.append(Tunable("gated_activation", key, _TILES, partial(_workload, inner, None)))
        found.append(Tunable("gated_activation_quantized", key, _TILES, partial(_workload, inner, by_group)))
        found.append(Tunable("gated_activation_token", key, _ROWS, partial(_workload, inner, by_token)))
    return [replace(each, definition=by_reference(each.workload)) for each in found]


def _workload(inner: int, scheme: ActivationScheme | None, device: torch.device) -> Callable[[], object]:
    gate_up = torch.randn(TOKENS, 2 * inner, dtype=torch.bfloat16, device=device)
    if scheme is None:
        return partial(gated_activation, gate_up, "silu")
    return partial(gated_activation_quantized, gate_up, "silu", scheme)
