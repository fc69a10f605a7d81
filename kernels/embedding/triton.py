# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Gathers one row of the table for each token, a tile of columns per program; reads nothing for a token outside the
table."""

import triton
import triton.language as tl
from torch import Tensor

from ..launching.launch import cdiv, launch
from ..tuning import Config, pick


@triton.jit(do_not_specialize=["token_stride"])
def gather_kernel(
    tokens_ptr,
    table_ptr,
    out_ptr,
    token_stride,
    table_rows,
    table_stride,
    scale,
    WIDTH: tl.constexpr,
    SCALED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    fits = columns < WIDTH
    token = tl.load(tokens_ptr + row * token_stride)
    known = (token >= 0) & (token < table_rows)
    # keeps the address inside the table, though nothing is read there
    source = table_ptr + tl.where(known, token, 0) * table_stride + columns
    values = tl.load(source, mask=fits & known, other=0.0)
    if SCALED:
        values = (values.to(tl.float32) * scale).to(table_ptr.dtype.element_ty)
    tl.store(out_ptr + row * WIDTH + columns, values, mask=fits)


def gather_rows(tokens: Tensor, table: Tensor, scale: float, out: Tensor) -> None:
    """Fills ``out`` [T, H], contiguous; see :func:`stentor.kernels.embedding`."""
    width = table.shape[1]
    key = f"{width} {str(table.dtype).removeprefix('torch.')}"
    config = pick("embedding", key, Config.of(BLOCK=min(1024, 1 << max(4, (width - 1).bit_length())), num_warps=4))
    launch(
        gather_kernel,
        (tokens.shape[0], cdiv(width, config["BLOCK"])),
        tokens,
        table,
        out,
        tokens.stride(0),
        table.shape[0],
        table.stride(0),
        float(scale),
        config=config,
        WIDTH=width,
        SCALED=scale != 1.0,
    )
