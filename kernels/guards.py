"""Checks that open every public function: one clear line in place of a wrong answer."""

import torch
from torch import Tensor

from .native import NativeFunction, unavailable_reason

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def need(condition: bool, operation: str, message: str) -> None:
    """Raises ValueError naming the operation unless ``condition`` holds."""
    if not condition:
        raise ValueError(f"{operation}: {message}")


def describe(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')} on {tensor.device}"


def row_stride(tensor: Tensor, operation: str, name: str) -> int:
    """Elements between consecutive rows of ``tensor`` seen as [rows, last dim].

    Raises:
        ValueError: the last dim is not contiguous, or the leading dims do not fold into one.
    """
    shape, stride = tensor.shape, tensor.stride()
    if stride[-1] != 1 and shape[-1] > 1:
        raise ValueError(f"{operation}: the last dim of {name} must be contiguous, its stride is {stride[-1]}")
    if len(shape) == 2:
        return stride[0]
    if len(shape) == 1:
        return shape[0]
    for dim in range(len(shape) - 2):
        if shape[dim] > 1 and stride[dim] != stride[dim + 1] * shape[dim + 1]:
            raise ValueError(f"{operation}: the leading dims of {name} must fold into rows, strides are {stride}")
    return stride[-2]


def native_obstacle(function: NativeFunction | None, tensor: Tensor, dtypes: str = "float32 or bfloat16") -> str | None:
    """Why the native variant cannot take ``tensor``; None when it can. ``function`` is that of its dtype, if any."""
    if tensor.device.type != "cpu":
        return f"it runs on the CPU, the tensors are on {tensor.device}"
    if function is None:
        return f"it takes {dtypes}, not {str(tensor.dtype).removeprefix('torch.')}"
    if function.bind() is None:
        return unavailable_reason() or "there is no native library"
    return None
