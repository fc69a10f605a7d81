# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""y = (x - mean(x)) / sqrt(mean((x - mean(x))²) + eps) · w + b, where x first gets the residual added, if there is
one."""

import triton
import triton.language as tl
from torch import Tensor

from ..launching.launch import cdiv, launch
from ..tuning import pick
from .rows import block_of, default_config, rows_of, tuning_key
from .triton_tiles import load_rows


@triton.jit(do_not_specialize=["count"])
def layer_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    count,
    inner,
    outer_stride,
    inner_stride,
    eps,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    columns = tl.arange(0, BLOCK)[None, :]
    column_fits = columns < WIDTH
    weight = tl.load(weight_ptr + columns, mask=column_fits, other=0.0)
    x, rows, row_fits = load_rows(x_ptr, residual_ptr, count, inner, outer_stride, inner_stride, WIDTH, ROWS, BLOCK)
    centred = tl.where(column_fits, x - tl.sum(x, 1, keep_dims=True) / WIDTH, 0.0)  # [ROWS, BLOCK]
    y = centred * tl.rsqrt(tl.sum(centred * centred, 1, keep_dims=True) / WIDTH + eps) * weight.to(tl.float32)
    if bias_ptr is not None:
        y += tl.load(bias_ptr + columns, mask=column_fits, other=0.0).to(tl.float32)
    tl.store(out_ptr + rows * WIDTH + columns, y.to(out_ptr.dtype.element_ty), mask=row_fits & column_fits)


def layer_norm_rows(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor
) -> None:
    """Fills ``out``, contiguous and of the shape of ``x``; ``residual`` becomes its sum with ``x``."""
    width = x.shape[-1]
    rows = rows_of(x)
    block = block_of(width)
    config = pick("layer_norm", tuning_key(width, x.dtype), default_config(block))
    launch(
        layer_norm_kernel,
        (cdiv(rows.number, config["ROWS"]) if width else 0,),
        x,
        residual,
        weight,
        bias,
        out,
        *rows,
        float(eps),
        config=config,
        WIDTH=width,
        BLOCK=block,
    )
