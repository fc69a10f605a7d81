"""The norms that the tuner tries: hidden sizes of Llama-3.1-8B, Qwen3-32B and Whisper, and the heads that Qwen3
norms."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from ..quantize.scheme import FP8, ActivationScheme
from ..tuning import Config, Tunable, by_reference
from .layer import add_layer_norm
from .quantized import add_rms_norm_quantized
from .rms import add_rms_norm, rms_norm
from .rows import tuning_key

TOKENS = 4096
_DTYPE = torch.bfloat16
_LONG_ROWS = [Config.of(ROWS=1, num_warps=warps) for warps in (4, 8, 16, 32)]
_SHORT_ROWS = [Config.of(ROWS=rows, num_warps=warps) for rows in (4, 8, 16, 32) for warps in (1, 2, 4, 8)]


def tunables() -> list[Tunable]:
    found = [Tunable("rms_norm", tuning_key(128, _DTYPE), _SHORT_ROWS, _heads)]
    for hidden in (4096, 5120):
        key = tuning_key(hidden, _DTYPE)
        found.append(Tunable("rms_norm", key, _LONG_ROWS, partial(_add_rms_norm, hidden)))
        found.append(Tunable("rms_norm_quantized", key, _LONG_ROWS, partial(_add_rms_norm_quantized, hidden)))
    found.append(Tunable("layer_norm", tuning_key(1280, _DTYPE), _LONG_ROWS, partial(_add_layer_norm, 1280)))
    return [replace(each, definition=by_reference(each.workload)) for each in found]


def _heads(device: torch.device) -> Callable[[], object]:
    fused = torch.randn(TOKENS, 80, 128, dtype=_DTYPE, device=device)
    return partial(rms_norm, fused[:, :64], torch.ones(128, dtype=_DTYPE, device=device), 1e-6)


def _rows(hidden: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    # x is 0, so that the residual does not change over many calls
    x = torch.zeros(TOKENS, hidden, dtype=_DTYPE, device=device)
    return x, torch.randn_like(x), torch.ones(hidden, dtype=_DTYPE, device=device)


def _add_rms_norm(hidden: int, device: torch.device) -> Callable[[], object]:
    rows = _rows(hidden, device)
    return lambda: (add_rms_norm(*rows, 1e-6), rows[1])


def _add_rms_norm_quantized(hidden: int, device: torch.device) -> Callable[[], object]:
    return partial(add_rms_norm_quantized, *_rows(hidden, device), 1e-6, ActivationScheme(FP8, "token"))


def _add_layer_norm(hidden: int, device: torch.device) -> Callable[[], object]:
    x, residual, weight = _rows(hidden, device)
    return partial(add_layer_norm, x, residual, weight, weight, 1e-5)
