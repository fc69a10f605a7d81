"""Triton's interpreter, with the parts that dominate the kernel tests made cheaper; what kernels compute is unchanged.

- The interpreter replaces every function of ``triton.language`` at each call of a kernel or device function. Here it
  does so once for each function and leaves them replaced: in a process that interprets, nothing needs the originals.
- It computes 8- to 32-bit integer arithmetic a second time in 64 bits, compares, and drops the outcome, since its
  option ``debug`` is off. Here it does not compute it.
- It builds its table of numpy types at every look-up. Here it keeps what it has found.

These are private names of Triton, of the version in ``constraints.txt``; ``tests/kernels/test_interpreter.py`` notices
when they change.
"""

from collections.abc import Callable
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
