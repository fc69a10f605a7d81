"""Detects what this machine's processor can do, and sets how products run: on Intel's AMX tiles, or on vectors
(amx.h)."""

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from .load import NativeFunction


def multiplies_bfloat16() -> bool:
    """Whether there are instructions for bfloat16 products that torch uses too: AVX-512 BF16, or Arm's BF16."""
    if platform.machine() == "aarch64":
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return bool(torch.cpu._is_avx512_bf16_supported())


def attends_in_pairs() -> bool:
    """Whether bfloat16 attention has fast products for head dims that are a multiple of 32: AVX-512 BF16, or tiles."""
    return tile_form() != "none" or bool(torch.cpu._is_avx512_bf16_supported())


TileForm = Literal["none", "hardware", "emulated"]
"""``emulated``: C++ with the same bits as the instructions, in a library that is built only for that."""
TILE_FORMS: tuple[TileForm, ...] = ("none", "hardware", "emulated")
_NOT_COMPILED = -1

_FORM = NativeFunction("stentor_tile_form", restype=ctypes.c_int64)
_REFUSAL = NativeFunction("stentor_tile_refusal", restype=ctypes.c_int64)
_USE = NativeFunction("stentor_use_tiles", ctypes.c_int64, restype=ctypes.c_int64)


def tile_form() -> TileForm:
    """Returns the form that kernels use; ``none`` without a library."""
    return TILE_FORMS[_FORM()] if _FORM.bind() is not None else "none"


def describe_tiles() -> str | None:
    """Returns one line on whether products run on AMX tiles; None if the processor or the compiler has none."""
    form = tile_form()
    if form != "none":
        return "products and attention run on AMX tiles" + (", emulated" if form == "emulated" else "")
    refusal = _REFUSAL() if _REFUSAL.bind() is not None else _NOT_COMPILED
    if refusal == _NOT_COMPILED:
        return None
    reason = "" if refusal == 0 else f": the system refuses them ({os.strerror(refusal)})"
    return f"products and attention run on vectors, without the processor's AMX tiles{reason}"


@contextmanager
def force_tiles(form: TileForm) -> Iterator[None]:
    """Within the block, all kernels of this process use ``form``; none may be running when it begins or ends.

    Raises:
        ValueError: the library, the processor or the system has no such form.
    """
    before = _FORM() if _FORM.bind() is not None else 0
    if _USE.bind() is None or _USE(TILE_FORMS.index(form)):
        raise ValueError(f"tiles cannot be {form} here")
    try:
        yield
    finally:
        _USE(before)
