# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""How Triton kernels store a tile of float32 rows: as floats, or quantised."""

import triton
import triton.language as tl

from .reference import SMALLEST_SCALE
from .triton import greatest_magnitude, reciprocal, rounded, scale_of

_SMALLEST_SCALE = tl.constexpr(SMALLEST_SCALE)


@triton.jit
def store_rows(
    y,
    out_ptr,
    scales_ptr,
    rows,
    row_fits,
    first,
    WIDTH: tl.constexpr,
    GRANULARITY: tl.constexpr,
    GROUP: tl.constexpr,
    GREATEST: tl.constexpr,
):
    """Stores a tile of a contiguous [T, WIDTH] tensor, and the scales it computes.

    Args:
        y: [R, C] float32, 0 in columns past WIDTH.
        out_ptr: of the tensor, or of the bytes of a float8_e4m3fn one (:func:`.fp8.as_kernel_argument`).
        scales_ptr: [1] to read for GRANULARITY ``tensor``, [T, 1] or [T, ceil(WIDTH / GROUP)] to write for ``token``
            and ``group``; None for ``none``, where values are stored in the tensor's own float dtype.
        rows: [R, 1] int64. row_fits: [R, 1].
        first: the first column; it begins a group. For ``token`` it is 0 and the tile holds whole rows.
    """
    R: tl.constexpr = y.shape[0]
    C: tl.constexpr = y.shape[1]
    columns = first + tl.arange(0, C)[None, :]
    target = out_ptr + rows * WIDTH + columns
    fits = row_fits & (columns < WIDTH)
    OUT: tl.constexpr = out_ptr.dtype.element_ty
    if GRANULARITY == "none":
        tl.store(target, y.to(OUT), mask=fits)
    elif GRANULARITY == "tensor":
        tl.store(target, rounded(y * reciprocal(tl.load(scales_ptr)), GREATEST, OUT), mask=fits)
    elif GRANULARITY == "token":
        scale = scale_of(greatest_magnitude(y, 1), GREATEST, _SMALLEST_SCALE)[:, None]  # [R, 1]
        tl.store(scales_ptr + rows, scale, mask=row_fits)
        tl.store(target, rounded(y * reciprocal(scale), GREATEST, OUT), mask=fits)
    else:
        GROUPS: tl.constexpr = (WIDTH + GROUP - 1) // GROUP
        grouped = tl.reshape(y, (R, C // GROUP, GROUP))
        scale = scale_of(greatest_magnitude(grouped, 2), GREATEST, _SMALLEST_SCALE)  # [R, C / GROUP]
        groups = first // GROUP + tl.arange(0, C // GROUP)[None, :]
        tl.store(scales_ptr + rows * GROUPS + groups, scale, mask=row_fits & (groups < GROUPS))
        quantized = rounded(grouped * reciprocal(scale)[:, :, None], GREATEST, OUT)
        tl.store(target, tl.reshape(quantized, (R, C)), mask=fits)
