"""Measures, on this machine, from how many rows on products use the processor's matrix tiles. Bits do not depend on
it."""

import ctypes
import time

import torch

from ..native import NativeFunction, set_threads
from ..native.processor import tile_form
from . import linear_packed
from .weight import PackedKind, PackedWeight, empty_packed

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""The numbers of rows that are tried."""
KINDS: tuple[PackedKind, ...] = ("bf16", "q4", "q8")
"""One kind of each class that has a limit of its own: ``tiles::Weights`` in ``native/amx.h``."""
_OUTPUTS, _INPUTS, _REPEATS = 256, 576, 5
_NEVER = 1 << 30
_USE_FROM = NativeFunction("stentor_use_tiles_from", ctypes.c_int64, ctypes.c_int64, restype=ctypes.c_int64)


def measure_crossover() -> tuple[int, ...] | None:
    """Sets the limits and returns them: for each of :data:`KINDS`, the rows from which tiles are at least as fast as
    vectors for all numbers tried.

    Returns None, at once, if products do not use the processor's tiles. It takes some tens of milliseconds. No kernel
    may be running.
    """
    if tile_form() != "hardware":
        return None
    before = set_threads(1)
    try:
        return tuple(_measure(number, kind) for number, kind in enumerate(KINDS))
    finally:
        set_threads(before)


def describe_crossover(limits: tuple[int, ...]) -> str:
    """Describes what :func:`measure_crossover` returned, for the start-up log."""
    names = ("bfloat16", "codes of 4 bits", "codes of 8 bits")
    return ", ".join(f"{name} from {rows} rows on" for name, rows in zip(names, limits, strict=True))


def use_tiles_from(kind: PackedKind, rows: int) -> int:
    """Makes products with weights of the class of ``kind``, one of :data:`KINDS`, use tiles from ``rows`` on. Returns
    the limit before."""
    was: int = _USE_FROM(KINDS.index(kind), rows)
    return was


def _measure(number: int, kind: PackedKind) -> int:
    weight = empty_packed(_OUTPUTS, _INPUTS, kind)
    least = ROWS[-1] + 1
    for rows in reversed(ROWS):
        x = torch.ones(rows, _INPUTS)
        by_tiles, by_vectors = (_fastest(number, limit, x, weight) for limit in (1, _NEVER))
        if by_tiles > by_vectors:
            break
        least = rows
    _USE_FROM(number, least)
    return least


def _fastest(number: int, limit: int, x: torch.Tensor, weight: PackedWeight) -> float:
    _USE_FROM(number, limit)
    times = []
    for _ in range(_REPEATS):
        began = time.thread_time()
        linear_packed(x, weight, variant="native")
        times.append(time.thread_time() - began)
    return min(times)
