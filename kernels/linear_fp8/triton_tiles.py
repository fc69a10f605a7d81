# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""out[t, n] = Σ_k x[t, k] weight[n, k] for many tokens: tiles of the output, any scales, any sizes.

:mod:`.triton_tma` may multiply fp8 with scales by group and block; the tuning table decides.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launching.copy_engine import COPY_ENGINE, THREADS, is_aligned
from ..launching.launch import cdiv
from ..launching.repeated import prepare
from ..quantize.fp8 import as_kernel_argument, widen
from ..quantize.operands import GROUP, Operands, Product
from ..tuning import Config, Tunable, pick
from .triton_skinny import operand_dtype
from .triton_tma import prepare_tma, scaled_in_blocks, unsupported_reason
from .workloads import tunables_of

OPERATION = "linear_8bit_tiles"
COPY_ENGINE_AHEAD = COPY_ENGINE + 1
"""The copy engine begins the next tile of outputs while one is written."""
SHARED_BYTES = 227 * 1024
"""Of a multiprocessor of Hopper."""
_TILES_OF_TOKENS_TOGETHER = 8
"""Tiles that are adjacent in launch order share the weight's tile in the cache."""


@triton.jit(do_not_specialize=["tokens"])
def tiles_kernel(
    x,
    x_scale,
    weight,
    weight_scale,
    bias,
    out,
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
    TOGETHER: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """``OPERAND``: the dtype that both sides are multiplied in; None: their stored dtype."""
    EVERY: tl.constexpr = BLOCK_K if BLOCK_K < 128 else 128
    program = tl.program_id(0)
    tiles_t, tiles_n = tl.cdiv(tokens, BLOCK_T), tl.cdiv(rows, BLOCK_N)
    band = program // (TOGETHER * tiles_n)
    in_band = tl.minimum(tiles_t - band * TOGETHER, TOGETHER)
    within_band = program % (TOGETHER * tiles_n)
    tile_t = band * TOGETHER + within_band % in_band
    tile_n = within_band // in_band
    token = tile_t.to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    row = tile_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    within = tl.arange(0, BLOCK_K)
    inputs = x + token[:, None] * x_stride + within[None, :]
    weights = weight + row[None, :] * width + within[:, None]
    total = tl.zeros([BLOCK_T, BLOCK_N], SUM)
    for start in range(0, width, BLOCK_K):
        inside = start + within < width
        left = tl.load(inputs + start, mask=(token[:, None] < tokens) & inside[None, :], other=0.0)
        right = tl.load(weights + start, mask=inside[:, None] & (row[None, :] < rows), other=0.0)
        if OPERAND is not None:
            left = widen(left, OPERAND)
            right = widen(right, OPERAND)
        if X_GROUPED and W_BLOCKED and 128 % BLOCK_N == 0:  # a tile is in one block of the weight's scales
            scale = tl.load(x_scale + token * x_scale_stride + start // 128, mask=token < tokens, other=0.0)
            block = weight_scale + (tile_n.to(tl.int64) * BLOCK_N) // 128 * weight_scale_stride + start // 128
            scale *= tl.load(block)
            total += tl.dot(left, right, input_precision=PRECISION) * scale[:, None]
        elif X_GROUPED or W_BLOCKED:
            part = tl.dot(left, right, input_precision=PRECISION)
            if X_GROUPED:
                scale = tl.load(x_scale + token * x_scale_stride + start // 128, mask=token < tokens, other=0.0)
                part *= scale[:, None]
            if W_BLOCKED:
                block = weight_scale + (row // 128) * weight_scale_stride + start // 128
                part *= tl.load(block, mask=row < rows, other=0.0)[None, :]
            total += part
        else:
            # tensor cores sum fp8 with few bits: every 128 products the sum goes to float32
            total = tl.dot(left, right, total, input_precision=PRECISION, max_num_imprecise_acc=EVERY, out_dtype=SUM)
    result = total.to(tl.float32)
    if x_scale is not None and not X_GROUPED:
        result *= tl.load(x_scale + token * x_scale_stride, mask=token < tokens, other=0.0)[:, None]
    if not W_BLOCKED:
        result *= tl.load(weight_scale + row * weight_scale_stride, mask=row < rows, other=0.0)[None, :]
    if bias is not None:
        result += tl.load(bias + row, mask=row < rows, other=0.0).to(tl.float32)[None, :]
    inside = (token[:, None] < tokens) & (row[None, :] < rows)
    tl.store(out + token[:, None] * rows + row[None, :], result.to(out.dtype.element_ty), mask=inside)


def prepare_tiles(operands: Operands) -> Product:
    """Prepares the product of any number of tokens, with any scales."""
    config = pick(OPERATION, key(operands), default(operands))
    if operands.scaled_by_step and 128 % config["BLOCK_K"]:
        raise ValueError(f"{OPERATION}: with groups or blocks BLOCK_K must divide 128, not be {config['BLOCK_K']}")
    by_threads = _prepare_threads(operands, config)
    if config.sizes.get("LOADS", THREADS) == THREADS or unsupported_reason(operands) is not None:
        return by_threads
    ahead = config["LOADS"] == COPY_ENGINE_AHEAD
    by_engine = prepare_tma(operands, config, operand_dtype(operands), _TILES_OF_TOKENS_TOGETHER, ahead)

    def tiles(x: Tensor, x_scale: Tensor | None, weight: Tensor, weight_scale: Tensor, bias: Tensor | None) -> Tensor:
        product = by_engine if is_aligned(x) and is_aligned(weight) else by_threads
        return product(x, x_scale, weight, weight_scale, bias)

    return tiles


def _prepare_threads(operands: Operands, config: Config) -> Product:
    tokens, rows, width = operands.shape
    x, x_scale, weight, weight_scale, bias = operands.tensors
    out_dtype, sizes = operands.out_dtype, {name: config[name] for name in ("BLOCK_T", "BLOCK_N", "BLOCK_K")}
    start = prepare(
        tiles_kernel,
        (cdiv(tokens, sizes["BLOCK_T"]) * cdiv(rows, sizes["BLOCK_N"]),),
        (
            as_kernel_argument(x),
            x_scale,
            as_kernel_argument(weight),
            weight_scale,
            bias,
            x.new_empty(0, dtype=out_dtype),
        ),
        *(tokens, rows, width, x.stride(0), operands.x_scale_stride, operands.weight_scale_stride),
        config=Config.of(num_warps=config.num_warps, num_stages=config.num_stages, **sizes),
        X_GROUPED=operands.input_scales == "group",
        W_BLOCKED=operands.weight_scales == "block",
        OPERAND=operand_dtype(operands),
        SUM=tl.int32 if x.dtype == torch.int8 else tl.float32,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        TOGETHER=_TILES_OF_TOKENS_TOGETHER,
    )

    def tiles(x: Tensor, x_scale: Tensor | None, weight: Tensor, weight_scale: Tensor, bias: Tensor | None) -> Tensor:
        out = x.new_empty((tokens, rows), dtype=out_dtype)
        start(x, x_scale, weight, weight_scale, bias, out)
        return out

    return tiles


def key(operands: Operands) -> str:
    tokens, rows, width = operands.shape
    return f"{rows}x{width} t{_bucket(tokens)} {operands.kinds}"


def _bucket(tokens: int) -> int:
    return next((size for size in (128, 512, 2048) if tokens <= size), 8192)


def default(operands: Operands) -> Config:
    loads = {"LOADS": THREADS, "PROGRAMS_PER_SM": 1} if scaled_in_blocks(operands) else {}
    if operands.x.dtype == torch.float32 or operands.shape[2] % 16:  # such widths are loaded byte by byte
        return Config.of(num_warps=4, num_stages=2, BLOCK_T=32, BLOCK_N=64, BLOCK_K=32, **loads)
    block_k = 64 if operands.input_scales == "none" else 128
    if operands.shape[0] <= 512:
        return Config.of(num_warps=4, num_stages=4, BLOCK_T=64, BLOCK_N=64, BLOCK_K=block_k, **loads)
    # fp8 that is decoded here needs registers, and so do scales that change along K: a large tile has no room for both
    decoded = operands.x.dtype == torch.float8_e4m3fn and operand_dtype(operands) is not None
    rows = 64 if decoded and operands.scaled_by_step else 128
    return Config.of(num_warps=8, num_stages=3, BLOCK_T=128, BLOCK_N=rows, BLOCK_K=block_k, **loads)


def candidates(operands: Operands) -> list[Config]:
    """Returns block sizes that fit in shared memory and registers: sums that are kept twice leave no room for the
    widest tiles. The copy engine takes whole groups."""
    twice = operands.scaled_by_step or operands.x.dtype == torch.float8_e4m3fn
    tile_sizes = [(64, 64, 4), (64, 128, 4), (128, 64, 4), (128, 128, 8)]
    if not twice:
        tile_sizes += [(128, 256, 8), (256, 128, 8)]
    in_blocks = scaled_in_blocks(operands)
    by_thread = {"LOADS": THREADS, "PROGRAMS_PER_SM": 1} if in_blocks else {}
    by_threads = [
        Config.of(num_warps=warps, num_stages=stages, BLOCK_T=tokens, BLOCK_N=rows, BLOCK_K=width, **by_thread)
        for tokens, rows, warps in tile_sizes
        for width in (64, 128)
        for stages in (3, 4)
        if stages * (tokens * operands.x.itemsize + rows) * width <= 160 * 1024
    ]
    if not in_blocks:
        return by_threads
    return by_threads + [
        Config.of(
            num_warps=warps,
            num_stages=stages,
            BLOCK_T=tokens,
            BLOCK_N=rows,
            BLOCK_K=GROUP,
            LOADS=loads,
            PROGRAMS_PER_SM=programs,
        )
        for tokens, rows, warps, programs in ((64, 128, 4, 2), (128, 64, 8, 2), (128, 128, 8, 1))
        for stages in (3, 4, 5, 6)
        for loads in (COPY_ENGINE, COPY_ENGINE_AHEAD)
        if programs * (stages * (tokens + rows) * GROUP + (loads - COPY_ENGINE) * tokens * rows * 2) <= SHARED_BYTES
    ]


def tunables() -> list[Tunable]:
    """Returns the tunables of both operations, at 128 to 8192 tokens."""
    return [
        tunable
        for tokens in (128, 512, 2048, 8192)
        for tunable in tunables_of(OPERATION, tokens=tokens, key=key, prepare=prepare_tiles, candidates=candidates)
    ]
