# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Products with many rows of x, whose weight tiles are dequantised in registers and multiplied at once.

Also dequantises the whole weight, for so many rows that a plain multiplication is faster.
"""

import triton
import triton.language as tl

from ..launching.warpgroup import waited
from .triton_codes import eight_bits, factors, four_bits, six_bits


@triton.jit
def _spread(plane, sub_plane, block, n, N, GROUP: tl.constexpr, SUB: tl.constexpr):
    """Returns the four column groups' factors as [ROWS, 1], or as [ROWS, 32] if a column group is two groups."""
    f0, f1, f2, f3 = factors(plane, sub_plane, block, 0, n, N, n >= 0, GROUP, SUB)
    f0, f1, f2, f3 = f0[:, None], f1[:, None], f2[:, None], f3[:, None]
    if GROUP == 16:
        first = (tl.arange(0, 32) < 16)[None, :]
        g0, g1, g2, g3 = factors(plane, sub_plane, block, 1, n, N, n >= 0, GROUP, SUB)
        f0, f1 = tl.where(first, f0, g0[:, None]), tl.where(first, f1, g1[:, None])
        f2, f3 = tl.where(first, f2, g2[:, None]), tl.where(first, f3, g3[:, None])
    return f0, f1, f2, f3


@triton.jit
def _tile(
    codes,
    high,
    s0,
    s1,
    s2,
    s3,
    m0,
    m1,
    m2,
    m3,
    zeros,
    block,
    n,
    N,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    OFFSET: tl.constexpr,
    SUB: tl.constexpr,
    MINS: tl.constexpr,
    ZEROS: tl.constexpr,
    FAST: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Returns rows ``n`` of a block, scaled in float32 and rounded to DTYPE: four column groups, [ROWS, 32] each."""
    w = tl.arange(0, 32)
    if BITS == 8:
        code_at = codes + (block * N + n[:, None]) * 128 + w[None, :]
        q0, q1 = eight_bits(tl.load(code_at)), eight_bits(tl.load(code_at + 32))
        q2, q3 = eight_bits(tl.load(code_at + 64)), eight_bits(tl.load(code_at + 96))
    else:
        words = tl.load(codes + (block * N + n[:, None]) * 32 + w[None, :])
        if BITS == 6:
            top = tl.load(high + (block * N + n[:, None]) * 32 + w[None, :])
            q0, q1, q2, q3 = six_bits(words, top, DTYPE, FAST)
        else:
            if ZEROS:
                z0, z1, z2, z3 = _spread(zeros, zeros, block, n, N, GROUP, False)
            else:
                z0 = tl.full([n.shape[0], 1], OFFSET, tl.float32)
                z1, z2, z3 = z0, z0, z0
            q0, q1, q2, q3 = four_bits(words, z0, z1, z2, z3, DTYPE, FAST)
    v0, v1 = q0.to(tl.float32) * s0.to(tl.float32), q1.to(tl.float32) * s1.to(tl.float32)
    v2, v3 = q2.to(tl.float32) * s2.to(tl.float32), q3.to(tl.float32) * s3.to(tl.float32)
    if MINS:
        if SUB:  # minima of super-blocks are subtracted
            v0, v1, v2, v3 = v0 - m0, v1 - m1, v2 - m2, v3 - m3
        else:
            v0, v1, v2, v3 = v0 + m0, v1 + m1, v2 + m2, v3 + m3
    return v0.to(DTYPE), v1.to(DTYPE), v2.to(DTYPE), v3.to(DTYPE)


@triton.jit
def _side_by_side(v0, v1, v2, v3):
    """Returns four column groups [ROWS, 32] as [ROWS, 128]; each thread keeps its values."""
    pairs = tl.join(tl.join(v0, v2), tl.join(v1, v3))  # [ROWS, 32, 2, 2]: the last two count 0, 1, 2, 3
    return tl.reshape(tl.permute(pairs, (0, 2, 3, 1)), [v0.shape[0], 128])


@triton.jit
def linear_general(
    x,
    codes,
    high,
    scales,
    sub_scales,
    mins,
    sub_mins,
    zeros,
    bias,
    out,
    T,
    N,
    K,
    blocks,
    blocks_a_part,
    stride_x,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    OFFSET: tl.constexpr,
    SUB: tl.constexpr,
    MINS: tl.constexpr,
    ZEROS: tl.constexpr,
    BIAS: tl.constexpr,
    WHOLE: tl.constexpr,
    FAST: tl.constexpr,
    PRECISION: tl.constexpr,
    HOPPER: tl.constexpr,
    TOGETHER: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """``out`` is [T, N]; with several PARTS of K it is float32 [PARTS, T, N], which another kernel sums.

    TOGETHER: the four column groups of a block are one product, for Hopper's warpgroups.
    """
    DTYPE: tl.constexpr = x.dtype.element_ty

    # Programs that share rows of the weight run at the same time.
    t = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    rows = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(2).to(tl.int64)
    n = tl.minimum(rows, N - 1)
    w = tl.arange(0, 32)
    x_at = x + t[None, :] * stride_x + w[:, None]  # [32, TOKENS]
    known = (t < T)[None, :]

    acc = tl.zeros([ROWS, TOKENS], tl.float32)
    begin = (part * blocks_a_part).to(tl.int32)
    end = tl.minimum(begin + blocks_a_part, blocks)
    # Loaded one step ahead: Triton does not pipeline narrow loads.
    s0, s1, s2, s3 = _spread(scales, sub_scales, begin, n, N, GROUP, SUB)
    m0, m1, m2, m3 = s0, s1, s2, s3
    if MINS:
        m0, m1, m2, m3 = _spread(mins, sub_mins, begin, n, N, GROUP, SUB)
    for block in range(begin, end):
        ahead = tl.minimum(block + 1, blocks - 1)
        next_s = _spread(scales, sub_scales, ahead, n, N, GROUP, SUB)
        next_m = next_s
        if MINS:
            next_m = _spread(mins, sub_mins, ahead, n, N, GROUP, SUB)
        v0, v1, v2, v3 = _tile(
            codes, high, s0, s1, s2, s3, m0, m1, m2, m3, zeros, block, n, N,
            BITS, GROUP, OFFSET, SUB, MINS, ZEROS, FAST, DTYPE,
        )  # fmt: skip
        start = block * 128
        if TOGETHER:  # one product per iteration, with no part waiting for another; other GPUs lack the registers
            column = tl.arange(0, 128)
            inside = known if WHOLE else known & (start + column < K)[:, None]
            right = tl.load(x + t[None, :] * stride_x + (start + column)[:, None], mask=inside, other=0.0)
            acc = tl.dot(_side_by_side(v0, v1, v2, v3), right, acc, input_precision=PRECISION)
        else:
            if WHOLE:
                in0, in1, in2, in3 = known, known, known, known
            else:
                left = (K - start - w)[:, None]
                in0, in1 = known & (left > 0), known & (left > 32)
                in2, in3 = known & (left > 64), known & (left > 96)
            acc = tl.dot(v0, tl.load(x_at + start, mask=in0, other=0.0), acc, input_precision=PRECISION)
            acc = tl.dot(v1, tl.load(x_at + start + 32, mask=in1, other=0.0), acc, input_precision=PRECISION)
            acc = tl.dot(v2, tl.load(x_at + start + 64, mask=in2, other=0.0), acc, input_precision=PRECISION)
            acc = tl.dot(v3, tl.load(x_at + start + 96, mask=in3, other=0.0), acc, input_precision=PRECISION)
        acc = waited(acc, HOPPER)
        s0, s1, s2, s3 = next_s
        m0, m1, m2, m3 = next_m

    if BIAS and PARTS == 1:
        acc += tl.load(bias + n).to(tl.float32)[:, None]
    y_at = out + (part * T + t[None, :]) * N + rows[:, None]
    tl.store(y_at, acc.to(out.dtype.element_ty), mask=(rows < N)[:, None] & known)


@triton.jit(do_not_specialize=["T"])
def add_parts(parts, bias, out, T, N, PARTS: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr):
    """Writes out [T, N] = the sum of parts float32 [PARTS, T, N], in order, plus the bias."""
    t = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = n < N
    y = tl.zeros([ROWS], tl.float32)
    for part in tl.static_range(PARTS):
        y += tl.load(parts + (part * T + t) * N + n, mask=inside, other=0.0)
    if BIAS:
        y += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + t * N + n, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def make_floats(
    codes,
    high,
    scales,
    sub_scales,
    mins,
    sub_mins,
    zeros,
    out,
    first,
    last,
    N,
    K,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    OFFSET: tl.constexpr,
    SUB: tl.constexpr,
    MINS: tl.constexpr,
    ZEROS: tl.constexpr,
    FAST: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Dequantises rows first ≤ n < last of the weight: out [last - first, K]."""
    DTYPE: tl.constexpr = out.dtype.element_ty
    block = tl.program_id(0)
    rows = first + tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    n = tl.minimum(rows, last - 1)
    s0, s1, s2, s3 = _spread(scales, sub_scales, block, n, N, GROUP, SUB)
    m0, m1, m2, m3 = s0, s1, s2, s3
    if MINS:
        m0, m1, m2, m3 = _spread(mins, sub_mins, block, n, N, GROUP, SUB)
    v0, v1, v2, v3 = _tile(
        codes, high, s0, s1, s2, s3, m0, m1, m2, m3, zeros, block, n, N,
        BITS, GROUP, OFFSET, SUB, MINS, ZEROS, FAST, DTYPE,
    )  # fmt: skip
    column = block * 128 + tl.arange(0, 32)[None, :]
    inside = (rows < last)[:, None]
    out_at = out + (rows - first)[:, None] * K + column
    tl.store(out_at, v0, mask=inside & (column < K))
    tl.store(out_at + 32, v1, mask=inside & (column + 32 < K))
    tl.store(out_at + 64, v2, mask=inside & (column + 64 < K))
    tl.store(out_at + 96, v3, mask=inside & (column + 96 < K))
