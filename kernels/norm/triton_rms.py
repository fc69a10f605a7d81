# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""y = x / sqrt(mean(x²) + eps) · w in registers, where x first gets the residual added, if there is one; quantised if
asked for."""

import triton
import triton.language as tl
from torch import Tensor

from ..launching.dependent import follow
from ..launching.launch import cdiv
from ..launching.repeated import Start, prepare
from ..quantize.fp8 import as_kernel_argument
from ..quantize.scheme import LARGEST, ActivationScheme
from ..quantize.triton_rows import store_rows
from ..tuning import pick
from .rows import block_of, default_config, rows_of, tuning_key
from .triton_tiles import load_rows, weighted


@triton.jit(do_not_specialize=["count"])
def rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    scales_ptr,
    count,
    inner,
    outer_stride,
    inner_stride,
    eps,
    WIDTH: tl.constexpr,
    PLUS_ONE: tl.constexpr,
    GRANULARITY: tl.constexpr,
    GROUP: tl.constexpr,
    GREATEST: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    follow(DEPENDENT)
    columns = tl.arange(0, BLOCK)[None, :]
    weight = tl.load(weight_ptr + columns, mask=columns < WIDTH, other=0.0)
    x, rows, row_fits = load_rows(x_ptr, residual_ptr, count, inner, outer_stride, inner_stride, WIDTH, ROWS, BLOCK)
    normed = x * tl.rsqrt(tl.sum(x * x, 1, keep_dims=True) / WIDTH + eps)  # [ROWS, BLOCK]
    y = weighted(normed, weight, PLUS_ONE).to(tl.float32)
    store_rows(y, out_ptr, scales_ptr, rows, row_fits, 0, WIDTH, GRANULARITY, GROUP, GREATEST)


def prepare_rms_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    eps: float,
    plus_one: bool,
    out: Tensor,
    scheme: ActivationScheme | None = None,
    scales: Tensor | None = None,
) -> Start:
    """Prepares a launch with ``x``, ``residual``, ``weight``, ``out`` and ``scales``; see the public calls.

    It fills ``out``, contiguous and of the shape of ``x``, and under a dynamic scheme ``scales``; ``residual`` becomes
    its sum with ``x``.
    """
    width = x.shape[-1]
    rows = rows_of(x)
    group = 1 if scheme is None else scheme.group
    block = max(block_of(width), group)
    operation = "rms_norm" if scheme is None else "rms_norm_quantized"
    config = pick(operation, tuning_key(width, x.dtype), default_config(block))
    return prepare(
        rms_norm_kernel,
        (cdiv(rows.number, config["ROWS"]) if width else 0,),
        (x, residual, weight, as_kernel_argument(out), scales),
        *rows,
        float(eps),
        config=config,
        WIDTH=width,
        PLUS_ONE=plus_one,
        GRANULARITY="none" if scheme is None else scheme.granularity,
        GROUP=group,
        GREATEST=1.0 if scheme is None else LARGEST[scheme.dtype],
        BLOCK=block,
    )
