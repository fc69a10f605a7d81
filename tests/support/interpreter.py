"""Triton's interpreter, with the parts that dominate the kernel tests made cheaper; what kernels compute is unchanged.

- The interpreter replaces every function of ``triton.language`` at each call of a kernel or device function. Here it
  does so once for each function and leaves them replaced: in a process that interprets, nothing needs the originals.
- It computes 8- to 32-bit integer arithmetic a second time in 64 bits, compares, and drops the outcome, since its
  option ``debug`` is off. Here it does not compute it.
- It builds its table of numpy types at every look-up. Here it keeps what it has found.
- It converts floats field by field, and where one is zero it looks for the leading bit of subnormal numbers place by
  place. Here numbers of 8 and 16 bits are looked up among all of them, converted once, and bfloat16 is the upper half.

These are private names of Triton, of the version in ``constraints.txt``; ``tests/kernels/test_interpreter.py`` notices
when they change.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, wraps
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

    interpreter._convert_float = _by_table(interpreter._convert_float)
    interpreter._patch_lang = patch_once
    interpreter._get_np_dtype = find_element_type
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=builder.options.debug)


def _by_table(convert: Callable[..., Any]) -> Callable[..., Any]:
    """``convert``, which converts each number for itself, with the same bits for each."""
    import triton.language as tl
    from triton._C.libtriton import ir

    tables: dict[tuple[str, str, Any], Any] = {}

    def table_of(source: Any, target: Any, rounding: Any) -> Any:
        key = (source.name, target.name, rounding)
        if key not in tables:
            bits = source.primitive_bitwidth
            tables[key] = convert(np.arange(1 << bits, dtype=f"uint{bits}"), source, target, rounding)
        return tables[key]

    @wraps(convert)
    def converted(values: Any, source: Any, target: Any, rounding: Any) -> Any:
        if source.primitive_bitwidth <= 16:
            every = table_of(source, target, rounding)
            return every[values.view(f"uint{source.primitive_bitwidth}")].reshape(values.shape)
        if source != tl.float32 or target != tl.bfloat16:
            return convert(values, source, target, rounding)
        bits = values.view(np.uint32)
        magnitude = bits & 0x7FFF_FFFF
        if ((magnitude > 0) & (magnitude < 1 << 23)).any():  # subnormal: shifted
            return convert(values, source, target, rounding)
        upper = (bits >> 16).astype(np.uint16)
        if rounding == ir.ROUNDING_MODE.RTNE:  # what the significand carries is or-ed to the exponent
            upper = (upper & 0xFF80) | ((upper & 0x7F) + ((bits >> 15) & 1).astype(np.uint16))
        return upper.reshape(values.shape)

    return converted


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
