# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""How norm kernels load their rows, and apply the weight."""

import triton
import triton.language as tl


@triton.jit
def load_rows(
    x_ptr,
    residual_ptr,
    count,
    inner,
    outer_stride,
    inner_stride,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Loads this program's rows of ``x``, after adding them to the contiguous residual if there is one.

    Returns:
        [ROWS, BLOCK] float32, 0 past the row; the rows' numbers [ROWS, 1] int64; which of the rows exist [ROWS, 1].
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    row_fits = rows < count
    columns = tl.arange(0, BLOCK)[None, :]
    fits = row_fits & (columns < WIDTH)
    begin = (rows // inner).to(tl.int64) * outer_stride + (rows % inner).to(tl.int64) * inner_stride
    x = tl.load(x_ptr + begin + columns, mask=fits, other=0.0).to(tl.float32)
    rows = rows.to(tl.int64)
    if residual_ptr is not None:
        target = residual_ptr + rows * WIDTH + columns
        total = (x + tl.load(target, mask=fits, other=0.0).to(tl.float32)).to(residual_ptr.dtype.element_ty)
        tl.store(target, total, mask=fits)
        x = total.to(tl.float32)
    return x, rows, row_fits


@triton.jit
def weighted(normed, weight, PLUS_ONE: tl.constexpr):
    """Returns ``normed``, float32, times ``weight``, or times 1 + ``weight``, rounded to the dtype of ``weight``."""
    if PLUS_ONE:
        y = normed * (1.0 + weight.to(tl.float32))
    else:
        y = normed.to(weight.dtype).to(tl.float32) * weight.to(tl.float32)
    return y.to(weight.dtype)
