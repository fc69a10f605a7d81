# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Products with a few rows of x: every warp streams its own share of K through the tensor cores.

A program has ROWS rows of the weight and all of x. Its SLICES warps take blocks of K in turn, as the batch dimension of
a batched multiplication, and their sums are added in order at the end. Nothing is split between programs, so it is one
launch with one result. Codes are multiplied as exact integers, and a group's sum is scaled in float32. Minima are
multiplied by the group's sum of x, which a row of ones yields in the layout of the accumulator.
"""

import triton
import triton.language as tl

from .triton_codes import (
    eight_bits,
    expand_factors,
    factors,
    four_bits,
    four_bits_above_128,
    load_factors,
    six_bits,
)


@triton.jit
def _add_product(q, x, offset, sums, APART: tl.constexpr, PRECISION: tl.constexpr):
    """Returns ``sums`` and the product of ``q`` and ``x``; if APART, that of ``offset`` and ``x`` too."""
    if APART:
        sums = tl.dot(offset, x, sums, input_precision=PRECISION)
    return tl.dot(q, x, sums, input_precision=PRECISION)


@triton.jit
def _add_block(q0, q1, q2, q3, x0, x1, x2, x3, sums, PRECISION: tl.constexpr):
    """Returns ``sums`` and the products of the four column groups."""
    sums = tl.dot(q0, x0, sums, input_precision=PRECISION)
    sums = tl.dot(q1, x1, sums, input_precision=PRECISION)
    sums = tl.dot(q2, x2, sums, input_precision=PRECISION)
    return tl.dot(q3, x3, sums, input_precision=PRECISION)


@triton.jit(do_not_specialize=["T"])
def linear_skinny(
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
    stride_x,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    OFFSET: tl.constexpr,
    SUB: tl.constexpr,
    MINS: tl.constexpr,
    ZEROS: tl.constexpr,
    BIAS: tl.constexpr,
    EVEN: tl.constexpr,
    WHOLE: tl.constexpr,
    FAST: tl.constexpr,
    PRECISION: tl.constexpr,
    SLICES: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    STEPS: tl.constexpr = 2,
):
    """STEPS, of four bits without zeros: at 2 codes are masked, and their offset is subtracted from each; at 1 they are
    only masked, and the offset is a second product of the tensor cores, by the same x."""
    PITCH: tl.constexpr = 128 if BITS == 8 else 32
    DTYPE: tl.constexpr = x.dtype.element_ty
    # float16's codes would lie above 1024, and their sums lose bits
    APART: tl.constexpr = STEPS == 1 and (tl.bfloat16 == DTYPE or not FAST)

    first_row = tl.program_id(0).to(tl.int64) * ROWS
    rows = first_row + tl.arange(0, ROWS)
    n = tl.minimum(rows, N - 1)  # [ROWS]; excess rows of the last tile are not stored
    t = tl.arange(0, TOKENS)
    w = tl.arange(0, 32)
    place = tl.arange(0, SLICES)
    block = place[:, None]  # [SLICES, 1]

    code_at = codes + (place[:, None, None] * N + n[None, :, None]) * PITCH + w[None, None, :]
    high_at = high + (place[:, None, None] * N + n[None, :, None]) * 32 + w[None, None, :]
    column = place[:, None, None] * 128 + w[None, :, None]  # [SLICES, 32, 1]
    x_at = x + t[None, None, :].to(tl.int64) * stride_x + column
    known = (t < T)[None, None, :]
    ones = tl.full([SLICES, ROWS, 32], 1.0, DTYPE)
    offset = tl.full([SLICES, ROWS, 32], -128.0 - OFFSET, DTYPE)

    acc = tl.zeros([SLICES, ROWS, TOKENS], tl.float32)
    nothing = tl.zeros([SLICES, ROWS, TOKENS], tl.float32)
    inside = block < blocks
    # Loaded one step ahead: no multiplication takes them directly, so Triton does not pipeline them.
    next_s0, next_s1, next_s2, next_s3 = load_factors(scales, sub_scales, block, 0, n[None, :], N, inside, GROUP, SUB)
    next_h0, next_h1, next_h2, next_h3 = next_s0, next_s1, next_s2, next_s3  # the second 16 columns
    if GROUP == 16:
        next_h0, next_h1, next_h2, next_h3 = load_factors(
            scales, sub_scales, block, 1, n[None, :], N, inside, GROUP, SUB
        )
    next_m0, next_m1, next_m2, next_m3 = next_s0, next_s1, next_s2, next_s3
    if MINS:
        next_m0, next_m1, next_m2, next_m3 = load_factors(mins, sub_mins, block, 0, n[None, :], N, inside, GROUP, SUB)
    for start in range(0, blocks, SLICES):
        block = place[:, None] + start
        inside = block + SLICES < blocks
        s0, s1, s2, s3 = expand_factors(next_s0, next_s1, next_s2, next_s3, GROUP, SUB)
        h0, h1, h2, h3 = expand_factors(next_h0, next_h1, next_h2, next_h3, GROUP, SUB)
        m0, m1, m2, m3 = expand_factors(next_m0, next_m1, next_m2, next_m3, GROUP, SUB)
        next_s0, next_s1, next_s2, next_s3 = load_factors(
            scales, sub_scales, block + SLICES, 0, n[None, :], N, inside, GROUP, SUB
        )
        next_h0, next_h1, next_h2, next_h3 = next_s0, next_s1, next_s2, next_s3
        if GROUP == 16:
            next_h0, next_h1, next_h2, next_h3 = load_factors(
                scales, sub_scales, block + SLICES, 1, n[None, :], N, inside, GROUP, SUB
            )
        next_m0, next_m1, next_m2, next_m3 = next_s0, next_s1, next_s2, next_s3
        if MINS:
            next_m0, next_m1, next_m2, next_m3 = load_factors(
                mins, sub_mins, block + SLICES, 0, n[None, :], N, inside, GROUP, SUB
            )

        there = known if EVEN else known & (block < blocks)[:, :, None]
        if WHOLE:
            in0, in1, in2, in3 = there, there, there, there
        else:
            left = K - start * 128 - column
            in0 = there & (left > 0)
            in1 = there & (left > 32)
            in2 = there & (left > 64)
            in3 = there & (left > 96)
        # If a column group is two groups, each meets only its own columns of x.
        first = (w < (16 if GROUP == 16 else 32))[None, :, None]
        x0 = tl.load(x_at, mask=in0 & first, other=0.0)
        x1 = tl.load(x_at + 32, mask=in1 & first, other=0.0)
        x2 = tl.load(x_at + 64, mask=in2 & first, other=0.0)
        x3 = tl.load(x_at + 96, mask=in3 & first, other=0.0)
        y0, y1, y2, y3 = x0, x1, x2, x3
        if GROUP == 16:
            second = (w >= 16)[None, :, None]
            y0 = tl.load(x_at, mask=in0 & second, other=0.0)
            y1 = tl.load(x_at + 32, mask=in1 & second, other=0.0)
            y2 = tl.load(x_at + 64, mask=in2 & second, other=0.0)
            y3 = tl.load(x_at + 96, mask=in3 & second, other=0.0)

        stored = (block < blocks)[:, :, None]
        if BITS == 8:
            if EVEN:
                c0, c1 = tl.load(code_at), tl.load(code_at + 32)
                c2, c3 = tl.load(code_at + 64), tl.load(code_at + 96)
            else:
                c0 = tl.load(code_at, mask=stored, other=0)
                c1 = tl.load(code_at + 32, mask=stored, other=0)
                c2 = tl.load(code_at + 64, mask=stored, other=0)
                c3 = tl.load(code_at + 96, mask=stored, other=0)
            q0, q1 = eight_bits(c0).to(DTYPE), eight_bits(c1).to(DTYPE)
            q2, q3 = eight_bits(c2).to(DTYPE), eight_bits(c3).to(DTYPE)
        else:
            words = tl.load(code_at) if EVEN else tl.load(code_at, mask=stored, other=0)
            if BITS == 6:
                top = tl.load(high_at) if EVEN else tl.load(high_at, mask=stored, other=0)
                q0, q1, q2, q3 = six_bits(words, top, DTYPE, FAST)
            elif APART:
                q0, q1, q2, q3 = four_bits_above_128(words, DTYPE, FAST)
            else:
                if ZEROS:
                    z0, z1, z2, z3 = factors(zeros, zeros, block, 0, n[None, :], N, block < blocks, GROUP, False)
                    z0, z1, z2, z3 = z0[:, :, None], z1[:, :, None], z2[:, :, None], z3[:, :, None]
                else:
                    z0 = tl.full([SLICES, ROWS, 1], OFFSET, tl.float32)
                    z1, z2, z3 = z0, z0, z0
                q0, q1, q2, q3 = four_bits(words, z0, z1, z2, z3, DTYPE, FAST)

        if GROUP == 0 or GROUP >= 128:
            d = nothing
            if APART:  # all before the codes: the same for every row, so that the compiler does it once
                d = _add_block(offset, offset, offset, offset, x0, x1, x2, x3, d, PRECISION)
            d = _add_block(q0, q1, q2, q3, x0, x1, x2, x3, d, PRECISION)
            acc += d * s0[:, :, None].to(tl.float32)
        elif GROUP == 64:
            d = _add_product(q0, x0, offset, nothing, APART, PRECISION)
            d = _add_product(q1, x1, offset, d, APART, PRECISION)
            acc += d * s0[:, :, None].to(tl.float32)
            d = _add_product(q2, x2, offset, nothing, APART, PRECISION)
            d = _add_product(q3, x3, offset, d, APART, PRECISION)
            acc += d * s2[:, :, None].to(tl.float32)
        else:
            if GROUP == 16:
                acc += tl.dot(q0, y0, nothing, input_precision=PRECISION) * h0[:, :, None].to(tl.float32)
                acc += tl.dot(q1, y1, nothing, input_precision=PRECISION) * h1[:, :, None].to(tl.float32)
                acc += tl.dot(q2, y2, nothing, input_precision=PRECISION) * h2[:, :, None].to(tl.float32)
                acc += tl.dot(q3, y3, nothing, input_precision=PRECISION) * h3[:, :, None].to(tl.float32)
            acc += _add_product(q0, x0, offset, nothing, APART, PRECISION) * s0[:, :, None].to(tl.float32)
            acc += _add_product(q1, x1, offset, nothing, APART, PRECISION) * s1[:, :, None].to(tl.float32)
            acc += _add_product(q2, x2, offset, nothing, APART, PRECISION) * s2[:, :, None].to(tl.float32)
            acc += _add_product(q3, x3, offset, nothing, APART, PRECISION) * s3[:, :, None].to(tl.float32)
        if MINS:
            SIGN: tl.constexpr = -1.0 if SUB else 1.0  # minima of super-blocks are subtracted
            acc += tl.dot(ones, x0, nothing, input_precision=PRECISION) * (SIGN * m0[:, :, None].to(tl.float32))
            acc += tl.dot(ones, x1, nothing, input_precision=PRECISION) * (SIGN * m1[:, :, None].to(tl.float32))
            acc += tl.dot(ones, x2, nothing, input_precision=PRECISION) * (SIGN * m2[:, :, None].to(tl.float32))
            acc += tl.dot(ones, x3, nothing, input_precision=PRECISION) * (SIGN * m3[:, :, None].to(tl.float32))

        code_at += SLICES * N * PITCH
        high_at += SLICES * N * 32
        x_at += SLICES * 128

    y = tl.sum(acc, 0)  # [ROWS, TOKENS]
    if BIAS:
        y += tl.load(bias + n).to(tl.float32)[:, None]
    y_at = out + t[None, :].to(tl.int64) * N + rows[:, None]
    tl.store(y_at, y.to(DTYPE), mask=(rows < N)[:, None] & (t < T)[None, :])
