"""The shapes and workloads that the kernels for 8-bit weights are tuned at."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..linear_int8.reference import linear_int8
from ..quantize import ActivationScheme, Quantized, quantize, quantize_weight_fp8, quantize_weight_int8
from ..quantize.operands import GROUP, Operands, Product, operands
from ..quantize.scheme import FP8
from ..tuning import Config, Tunable
from .reference import linear_fp8

# [N, K] of the projections: qkv, attention's output, gate and up, down
LLAMA_8B = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
QWEN3_32B = ((10240, 5120), (5120, 8192), (51200, 5120), (5120, 25600))


def tunables_of(
    operation: str,
    *,
    tokens: int,
    key: Callable[[Operands], str],
    prepare: Callable[[Operands], Product],
    candidates: Callable[[Operands], Sequence[Config]],
) -> list[Tunable]:
    """Returns one tunable for each weight, kind of weight and kind of input, at ``tokens`` rows."""
    return [
        Tunable(operation, key(shown), candidates(shown), _Workload(shown, prepare), _Workload(shown, defined))
        for rows, width in (*LLAMA_8B, *QWEN3_32B)
        for weight, quantised, blocks in (
            (FP8, True, False),
            (FP8, True, True),
            (FP8, False, False),
            (torch.int8, True, False),
            (torch.int8, False, False),
        )
        for shown in [unfilled(torch.device("meta"), tokens, rows, width, weight, quantised, blocks)]
    ]


def unfilled(
    device: torch.device, tokens: int, rows: int, width: int, dtype: torch.dtype, quantised: bool, blocks: bool
) -> Operands:
    """Returns uninitialised operands of a shape, with ``quantised`` or bfloat16 inputs.

    Scales are by group and block if ``blocks``, otherwise by token and channel.
    """
    groups = -(-width // GROUP)
    weight = torch.empty(rows, width, dtype=dtype, device=device)
    scale = torch.empty((-(-rows // GROUP), groups) if blocks else (rows,), device=device)
    x = torch.empty(tokens, width, dtype=dtype if quantised else torch.bfloat16, device=device)
    x_scale = torch.empty(tokens, groups if blocks else 1, device=device)
    return operands("linear", Quantized(x, x_scale) if quantised else x, weight, scale, None, torch.bfloat16, dtype)


def filled(like: Operands, device: torch.device) -> Operands:
    """Returns operands of the shape and kinds of ``like``, filled with random numbers."""
    tokens, rows, width = like.shape
    dtype, blocks = like.weight.dtype, like.weight_scales == "block"
    matrix = torch.randn(rows, width, dtype=torch.bfloat16, device=device)
    if dtype == torch.int8:
        weight, scale = quantize_weight_int8(matrix)
    else:
        weight, scale = quantize_weight_fp8(matrix, "block" if blocks else "channel")
    x = torch.randn(tokens, width, dtype=torch.bfloat16, device=device)
    given: Quantized | Tensor = x
    if like.x_scale is not None:
        given = quantize(x, ActivationScheme(dtype, "group" if blocks else "token"))
    return operands("linear", given, weight, scale, None, torch.bfloat16, dtype)


def defined(operands: Operands) -> Product:
    """Returns the product by the definition, of these operands alone."""
    reference = linear_int8 if operands.weight.dtype == torch.int8 else linear_fp8
    return lambda *tensors: reference(operands)


class _Workload:
    """Makes the operands and returns the call to time."""

    def __init__(self, like: Operands, prepare: Callable[[Operands], Product]) -> None:
        self._like, self._prepare = like, prepare

    def __call__(self, device: torch.device) -> Callable[[], Tensor]:
        made = filled(self._like, device)
        return lambda: self._prepare(made)(*made.tensors)
