"""Triton's interpreter, with the parts that dominate the kernel tests made cheaper; what kernels compute is unchanged.

- The interpreter replaces every function of ``triton.language`` at each call of a kernel or device function. Here it
  does so once for each function and leaves them replaced: in a process that interprets, nothing needs the originals.
- It computes 8- to 32-bit integer arithmetic a second time in 64 bits, compares, and drops the outcome, since its
  option ``debug`` is off. Here it does not compute it.
- It builds its table of numpy types at every look-up. Here it keeps what it has found.

These are private names of Triton, of the version in ``constraints.txt``; ``tests/kernels/test_interpreter.py`` notices
when they change.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np


class _NothingToRestore:
    def restore(self) -> None:
        pass


@cache  # once in a process
def speed_up() -> None:
    import triton.language as tl
    from triton.runtime import interpreter

    patch_language = interpreter._patch_lang
    patched: set[Callable[..., Any]] = set()

    def patch_once(fn: Callable[..., Any]) -> _NothingToRestore:
        if fn not in patched:
            patch_language(fn)
            patched.add(fn)
        return _NothingToRestore()

    find_type = cache(interpreter._get_np_dtype)
    pointer = np.dtype(np.uint64)

    def find_element_type(dtype: Any) -> np.dtype[Any]:
        element = dtype.element_ty if isinstance(dtype, tl.block_type) else dtype  # blocks and pointers have no hash
        return pointer if isinstance(element, tl.pointer_type) else find_type(element)

    interpreter._patch_lang = patch_once
    interpreter._get_np_dtype = find_element_type
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=builder.options.debug)


@contextmanager
def shuffled(seed: int) -> Iterator[None]:
    """Within the block the programs of a launch are interpreted in an order drawn anew for each from ``seed``, where
    Triton's interpreter takes one after another. What a kernel computes must not depend on it: on a GPU there is no
    order, and a program that reads what another writes races it."""
    from triton.runtime import interpreter

    builder, rng = interpreter.interpreter_builder, random.Random(seed)
    before, kind = (builder.set_grid_dim, builder.set_grid_idx), type(builder)
    order: list[tuple[int, int, int]] = []

    def draw_order(x: int, y: int, z: int) -> None:
        kind.set_grid_dim(builder, x, y, z)
        order[:] = [(i, j, k) for i in range(x) for j in range(y) for k in range(z)]
        rng.shuffle(order)

    builder.set_grid_dim, builder.set_grid_idx = draw_order, lambda *_: kind.set_grid_idx(builder, *order.pop())
    try:
        yield
    finally:
        builder.set_grid_dim, builder.set_grid_idx = before
