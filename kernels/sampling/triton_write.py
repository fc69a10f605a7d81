# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Puts rows where they belong, on the device."""

import triton
import triton.language as tl


@triton.jit
def write_rows(rows, packed, table, stride, WIDTH: tl.constexpr):
    """Grid [n]: row ``rows[i]`` of the table becomes row i of ``packed``, unless it is below 0."""
    i = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + i)
    if row >= 0:
        column = tl.arange(0, WIDTH)
        tl.store(table + row * WIDTH + column, tl.load(packed + i * stride + column))
