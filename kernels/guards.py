"""Argument checks that every public function begins with: one clear error in place of a wrong result."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .forced import forced
from .launching.launch import interpreted
from .native import NativeFunction, unavailable_reason
from .variants import Choice, wanted

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def describe(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')} on {tensor.device}"


def check_heads(operation: str, name: str, heads: Tensor, dtype: torch.dtype) -> None:
    """Raises ValueError unless ``heads`` is [tokens, heads, dim] of ``dtype``, a float dtype, with heads and dims
    contiguous; tokens may be strided."""
    if heads.dim() != 3 or heads.dtype not in FLOATS or heads.dtype != dtype:
        raise ValueError(f"{operation}: {name} {describe(heads)} must be [tokens, heads, dim] of one float dtype")
    check_contiguous_heads(operation, name, heads)


def check_contiguous_heads(operation: str, name: str, heads: Tensor) -> None:
    """Raises ValueError unless the heads and dims of ``heads`` [tokens, heads, dim] are contiguous."""
    _, head_stride, dim_stride = heads.stride()
    if (dim_stride != 1 and heads.shape[2] > 1) or (head_stride != heads.shape[2] and heads.shape[1] > 1):
        raise ValueError(f"{operation}: heads and dims of {name} must be contiguous, strides are {heads.stride()}")


def check_float32(operation: str, name: str, tensor: Tensor, shape: Sequence[int]) -> None:
    """Raises ValueError unless ``tensor`` is contiguous float32 of ``shape``."""
    if tensor.shape != tuple(shape) or tensor.dtype != torch.float32 or not tensor.is_contiguous():
        raise ValueError(f"{operation}: {name} {describe(tensor)} must be contiguous float32 {[*shape]}")


def native_unsupported_reason(function: NativeFunction | None, tensor: Tensor) -> str | None:
    """Returns why the native variant cannot take ``tensor``; None if it can. ``function`` is the one for its dtype, if
    any."""
    if not tensor.is_cpu:
        return f"it runs on the CPU, the tensors are on {tensor.device}"
    if function is None:
        return f"it takes float32 or bfloat16, not {str(tensor.dtype).removeprefix('torch.')}"
    if function.bind() is None:
        return unavailable_reason() or "there is no native library"
    return None


def triton_unsupported_reason(tensor: Tensor, choice: Choice) -> str | None:
    """Returns why the Triton variant cannot take ``tensor``; None if it can.

    It runs on CUDA. Under Triton's interpreter it also takes CPU tensors, but only if asked for by name. If launches
    are redirected (:class:`.forced.Forced`), it also takes meta tensors.
    """
    if tensor.is_cuda or (tensor.is_meta and forced.get().launch is not None):
        return None
    if interpreted() and wanted(choice) == "triton":
        return None
    return f"it runs on CUDA, the tensors are on {tensor.device}"
