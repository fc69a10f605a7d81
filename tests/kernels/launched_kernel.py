# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""A kernel with a parameter of each kind."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["count"])
def launched(x, y, stride, count, fraction, flag, MODE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = fraction
    if flag:
        value += count
    if MODE == "row":
        value += 1.0
    if y is not None:
        value += tl.load(y)
    tl.store(x + tl.program_id(0) * stride + at, value)
