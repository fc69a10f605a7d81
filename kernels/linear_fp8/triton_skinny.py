# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""out[t, n] = Σ_k weight[n, k] x[t, k] for few tokens: tensor cores, limited by memory bandwidth.

The weight is the left operand, so that its rows fill the instruction's 64 and the tokens are its narrow side. If the
tiles of N alone do not fill the GPU, K is split: each part is summed and written separately, and a second kernel adds
the parts in order, so that the result depends only on the shape. 16-bit weights have no scales
(:mod:`..linear.triton_skinny`).

The product may be added to the residual stream, with the sums of squares that the next norm needs: each program writes
those of its outputs, so that they too are added in one order.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launching.dependent import fetch_weights, follow
from ..launching.launch import cdiv, next_power_of_2
from ..launching.repeated import prepare
from ..launching.warpgroup import waited
from ..quantize.fp8 import as_kernel_argument, capability, widen
from ..quantize.operands import Operands, Product
from ..tuning import Config, Tunable, pick
from .workloads import tunables_of

OPERATION = "linear_8bit_skinny"
MAX_TOKENS = 64

_PROGRAMS = 384
"""The number of programs that K is split for: about three per multiprocessor of an H200."""


@triton.jit(do_not_specialize=["tokens"])
def skinny_kernel(
    x,
    x_scale,
    weight,
    weight_scale,
    bias,
    out,
    squares,
    tokens,
    rows,
    width,
    x_stride,
    x_scale_stride,
    weight_scale_stride,
    X_GROUPED: tl.constexpr,
    W_BLOCKED: tl.constexpr,
    OPERAND: tl.constexpr,
    SUM: tl.constexpr,
    PRECISION: tl.constexpr,
    HOPPER: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """``OPERAND``: the dtype that both sides are multiplied in; None: their stored dtype. With ``squares`` [programs,
    tokens], ``out`` is a stream that the product is added to."""
    EVERY: tl.constexpr = BLOCK_K if BLOCK_K < 128 else 128
    row = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(1)
    token = tl.arange(0, BLOCK_T)
    within = tl.arange(0, BLOCK_K)
    steps = tl.cdiv(tl.cdiv(width, BLOCK_K), SPLITS)
    begin = split * steps * BLOCK_K
    end = tl.minimum(begin + steps * BLOCK_K, width)
    fetch_weights(weight, row, rows, begin, width, BLOCK_K, DEPENDENT)
    follow(DEPENDENT)
    weights = weight + row[:, None] * width + within[None, :]
    inputs = x + token[None, :].to(tl.int64) * x_stride + within[:, None]
    total = tl.zeros([BLOCK_N, BLOCK_T], SUM)
    for start in range(begin, end, BLOCK_K):
        inside = start + within < width
        left = tl.load(weights + start, mask=(row[:, None] < rows) & inside[None, :], other=0.0)
        right = tl.load(inputs + start, mask=inside[:, None] & (token[None, :] < tokens), other=0.0)
        if OPERAND is not None:
            left = widen(left, OPERAND)
            right = widen(right, OPERAND)
        if X_GROUPED or W_BLOCKED:
            part = tl.dot(left, right, input_precision=PRECISION)
            if X_GROUPED:
                scale = tl.load(x_scale + token * x_scale_stride + start // 128, mask=token < tokens, other=0.0)
                part *= scale[None, :]
            if W_BLOCKED:
                block = weight_scale + (row // 128) * weight_scale_stride + start // 128
                part *= tl.load(block, mask=row < rows, other=0.0)[:, None]
            total += part
        else:
            # tensor cores sum fp8 with few bits: every 128 products the sum goes to float32
            total = tl.dot(left, right, total, input_precision=PRECISION, max_num_imprecise_acc=EVERY, out_dtype=SUM)
            if OPERAND is not None:
                total = waited(total, HOPPER)
    inside = (row[:, None] < rows) & (token[None, :] < tokens)
    target = out + token[None, :].to(tl.int64) * rows + row[:, None]
    if SPLITS > 1:
        tl.store(target + split.to(tl.int64) * tokens * rows, total, mask=inside)
    else:
        result = total.to(tl.float32)
        if x_scale is not None and not X_GROUPED:
            result *= tl.load(x_scale + token * x_scale_stride, mask=token < tokens, other=0.0)[None, :]
        if weight_scale is not None and not W_BLOCKED:
            result *= tl.load(weight_scale + row * weight_scale_stride, mask=row < rows, other=0.0)[:, None]
        if bias is not None:
            result += tl.load(bias + row, mask=row < rows, other=0.0).to(tl.float32)[:, None]
        result = result.to(out.dtype.element_ty)
        if squares is not None:
            result, own = added(result, target, inside)
            tl.store(squares + tl.program_id(0) * tokens + token, tl.sum(own, 0), mask=token < tokens)
        tl.store(target, result, mask=inside)


@triton.jit
def added(result, target, inside):
    """Returns the sum of ``result`` and the stream at ``target``, in their dtype, and its squares, float32."""
    summed = (tl.load(target, mask=inside, other=0.0).to(tl.float32) + result.to(tl.float32)).to(result.dtype)
    return summed, summed.to(tl.float32) * summed.to(tl.float32)


@triton.jit(do_not_specialize=["tokens"])
def add_parts_kernel(
    parts,
    x_scale,
    weight_scale,
    bias,
    out,
    squares,
    tokens,
    rows,
    x_scale_stride,
    weight_scale_stride,
    X_GROUPED: tl.constexpr,
    W_BLOCKED: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Adds parts [SPLITS, tokens, rows] in order; each program takes one block of one token. ``squares`` [blocks,
    tokens]: as for :func:`skinny_kernel`."""
    follow(DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    total = tl.load(parts + token * rows + row, mask=inside, other=0.0)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(parts + (split * tokens + token) * rows + row, mask=inside, other=0.0)
    result = total.to(tl.float32)
    if x_scale is not None and not X_GROUPED:
        result *= tl.load(x_scale + token * x_scale_stride)
    if weight_scale is not None and not W_BLOCKED:
        result *= tl.load(weight_scale + row * weight_scale_stride, mask=inside, other=0.0)
    if bias is not None:
        result += tl.load(bias + row, mask=inside, other=0.0).to(tl.float32)
    target = out + token * rows + row
    result = result.to(out.dtype.element_ty)
    if squares is not None:
        result, own = added(result, target, inside)
        tl.store(squares + tl.program_id(1) * tokens + token, tl.sum(own, 0))
    tl.store(target, result, mask=inside)


def prepare_skinny(operands: Operands) -> Product:
    """Prepares the product of up to :data:`MAX_TOKENS` tokens, with any scales."""
    config = pick(OPERATION, key(operands), default(operands))
    if operands.scaled_by_step and 128 % config["BLOCK_K"]:
        raise ValueError(f"{OPERATION}: with groups or blocks BLOCK_K must divide 128, not be {config['BLOCK_K']}")
    return prepare_few(
        *operands.tensors,
        operands.out_dtype,
        config,
        (operands.x_scale_stride, operands.weight_scale_stride),
        X_GROUPED=operands.input_scales == "group",
        W_BLOCKED=operands.weight_scales == "block",
        OPERAND=operand_dtype(operands),
    )


def prepare_few(
    x: Tensor,
    x_scale: Tensor | None,
    weight: Tensor,
    weight_scale: Tensor | None,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    config: Config,
    scale_strides: tuple[int, int] = (0, 0),
    *,
    X_GROUPED: bool = False,
    W_BLOCKED: bool = False,
    OPERAND: tl.dtype | None = None,
    streamed: bool = False,
) -> Callable[..., Tensor]:
    """Prepares the product of ``x`` by contiguous ``weight``, for these and other tensors of the same layout.

    ``streamed``: the result also takes the residual stream, contiguous [T, N] of ``out_dtype``, adds the product to it
    and returns the squares: float32 [parts, T], whose sum over the parts is that of the squares of a row of the stream.
    """
    (tokens, width), rows, splits = x.shape, weight.shape[0], config["SPLITS"]
    if config["BLOCK_T"] < tokens:
        raise ValueError(f"BLOCK_T must hold all {tokens} tokens, not {config['BLOCK_T']}")
    sums = torch.int32 if x.dtype == torch.int8 else torch.float32
    out, parts = x.new_empty(0, dtype=out_dtype), x.new_empty(0, dtype=sums)
    squares = x.new_empty(0, dtype=torch.float32) if streamed else None
    block = min(next_power_of_2(rows), 512)
    blocks = cdiv(rows, config["BLOCK_N"] if splits == 1 else block)
    last = (out, squares) if splits == 1 else (parts, None)
    start = prepare(
        skinny_kernel,
        (cdiv(rows, config["BLOCK_N"]), splits),
        (as_kernel_argument(x), x_scale, as_kernel_argument(weight), weight_scale, bias, *last),
        *(tokens, rows, width, x.stride(0), *scale_strides),
        config=config,
        X_GROUPED=X_GROUPED,
        W_BLOCKED=W_BLOCKED,
        OPERAND=OPERAND,
        SUM=tl.int32 if sums == torch.int32 else tl.float32,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        HOPPER=capability() == 90,
    )
    add = prepare(
        add_parts_kernel,
        (tokens, cdiv(rows, block)),
        (parts, x_scale, weight_scale, bias, out, squares),
        *(tokens, rows, *scale_strides),
        config=Config.of(num_warps=4, BLOCK=block),
        X_GROUPED=X_GROUPED,
        W_BLOCKED=W_BLOCKED,
        SPLITS=splits,
    )

    def few(
        x: Tensor,
        x_scale: Tensor | None,
        weight: Tensor,
        weight_scale: Tensor | None,
        bias: Tensor | None,
        stream: Tensor | None = None,
    ) -> Tensor:
        out = x.new_empty((tokens, rows), dtype=out_dtype) if stream is None else stream
        squares = x.new_empty((blocks, tokens), dtype=torch.float32) if streamed else None
        if splits == 1:
            start(x, x_scale, weight, weight_scale, bias, out, squares)
        else:
            made = x.new_empty((splits, tokens, rows), dtype=sums)
            start(x, x_scale, weight, weight_scale, bias, made, None)
            add(made, x_scale, weight_scale, bias, out, squares)
        return out if squares is None else squares

    return few


def operand_dtype(operands: Operands) -> tl.dtype | None:
    """Returns the dtype that tiles are multiplied in; None if it is their stored dtype."""
    x = operands.x
    if x.dtype == torch.int8:
        return None
    if x.dtype == torch.float8_e4m3fn:
        return None if as_kernel_argument(x) is x else tl.float16
    return {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}[x.dtype]


def key(operands: Operands) -> str:
    tokens, rows, width = operands.shape
    return f"{rows}x{width} t{block_of_tokens(tokens)} {operands.kinds}"


def block_of_tokens(tokens: int) -> int:
    return next(block for block in (16, 32, MAX_TOKENS) if tokens <= block)


def default(operands: Operands) -> Config:
    tokens, rows, width = operands.shape
    widened = operands.input_scales == "none"
    # fp8 sums that go to float32 within a step serialise its products, so a step has 128
    fp8 = operands.x.dtype == torch.float8_e4m3fn and operand_dtype(operands) is None and not operands.scaled_by_step
    block_k = 128 if operands.scaled_by_step or widened or fp8 else 256
    if widened and tokens > 32 and capability() < 90:  # a deeper tile does not fit the registers of mma.sync
        block_k = 64
    if operands.x.dtype == torch.float32 or width % 16:  # such widths are loaded byte by byte
        block_k = 32
    tiles = cdiv(rows, 64)
    splits = 1
    while tiles * splits < _PROGRAMS and width // (splits * 2) >= 4 * block_k:
        splits *= 2
    stages = 6 if fp8 and block_k == 128 else 4  # as many bytes in flight as with steps of 256 inputs
    return Config.of(
        num_warps=4, num_stages=stages, BLOCK_T=block_of_tokens(tokens), BLOCK_N=64, BLOCK_K=block_k, SPLITS=splits
    )


def candidates(operands: Operands) -> list[Config]:
    """Returns block sizes that fit in shared memory, which holds one stage less of some operands."""
    tokens = block_of_tokens(operands.shape[0])
    return [
        Config.of(
            num_warps=warps,
            num_stages=stages,
            BLOCK_T=tokens,
            BLOCK_N=rows,
            BLOCK_K=width,
            SPLITS=splits,
        )
        for rows, warps in ((64, 4), (128, 4), (128, 8))
        for width in ((64, 128) if operands.scaled_by_step else (64, 128, 256))
        for stages in (3, 4, 6)
        for splits in (1, 2, 4, 8)
        if rows * width * stages <= 128 * 1024 and (rows + tokens * operands.x.itemsize) * width * stages <= 256 * 1024
    ]


def tunables() -> list[Tunable]:
    """Returns the tunables of both operations, at 16, 32 and 64 tokens."""
    return [
        tunable
        for tokens in (16, 32, 64)
        for tunable in tunables_of(OPERATION, tokens=tokens, key=key, prepare=prepare_skinny, candidates=candidates)
    ]
