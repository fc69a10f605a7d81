# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Loads weights for multiplication: plain ones, or dequantised from their codes."""

import triton
import triton.language as tl


@triton.jit
def e2m1(code):
    """Returns the float32 value of a code: a sign bit, two exponent bits, one fraction bit."""
    exponent, fraction = (code >> 1) & 3, code & 1
    twice = tl.where(exponent == 0, fraction, (2 + fraction) << tl.maximum(exponent - 1, 0))
    return tl.where(code >= 8, -0.5, 0.5) * twice.to(tl.float32)


@triton.jit
def number_of(code, KIND: tl.constexpr):
    """Returns the float32 value of a four-bit code of a table."""
    if KIND == "iq4nl":
        # ggml's table less -128, one byte per value
        low: tl.constexpr = 0x766A5D4F3F2D1801
        high: tl.constexpr = 0xF1D9C5B5A6998D81 - (1 << 64)
        word = tl.where(code < 8, low, high).to(tl.int64)
        return (((word >> ((code & 7) * 8)) & 255).to(tl.int32) - 128).to(tl.float32)
    else:
        return e2m1(code)


@triton.jit
def by_group(
    groups,
    row,
    start,
    inputs,
    wanted,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    APART: tl.constexpr,
):
    """Loads one value per ``GROUP`` of inputs (0: all), with stride ``APART``, spread over [BLOCK_N, BLOCK_K], or
    [BLOCK_N, 1] if a block is within one group."""
    if GROUP == 0:
        return tl.load(groups + row // ROWS * APART, mask=wanted, other=0.0)[:, None]
    elif GROUP < BLOCK_K:
        each = tl.cdiv(inputs, GROUP)
        first = row // ROWS * each + start // GROUP
        number = tl.arange(0, BLOCK_K // GROUP)
        mask = wanted[:, None] & (start // GROUP + number < each)[None, :]
        values = tl.load(groups + (first[:, None] + number[None, :]) * APART, mask=mask, other=0.0)
        spread = tl.broadcast_to(values[:, :, None], [BLOCK_N, BLOCK_K // GROUP, GROUP])
        return tl.reshape(spread, [BLOCK_N, BLOCK_K])
    else:
        at = row // ROWS * tl.cdiv(inputs, GROUP) + start // GROUP
        return tl.load(groups + at * APART, mask=wanted, other=0.0)[:, None]


@triton.jit
def expanded(stored, row, start, inputs, wanted, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, FORM: tl.constexpr):
    """Returns float32 values [BLOCK_N, BLOCK_K]; those outside the weight are arbitrary but finite."""
    KIND: tl.constexpr = FORM[0]
    GROUP: tl.constexpr = FORM[1]
    ROWS: tl.constexpr = FORM[2]
    SHIFT: tl.constexpr = FORM[3]
    SPAN: tl.constexpr = FORM[4]
    codes, scales, factors, shifts = stored
    scale = by_group(scales, row, start, inputs, wanted, BLOCK_N, BLOCK_K, GROUP, ROWS, 1)
    scale = (scale.to(tl.int32) << 23).to(tl.float32, bitcast=True) if KIND == "mxfp4" else scale.to(tl.float32)
    if SPAN >= 0:
        APART: tl.constexpr = 2 if SHIFT == "mins" else 1
        scale *= by_group(factors, row, start, inputs, wanted, BLOCK_N, BLOCK_K, SPAN, 1, APART).to(tl.float32)
    if KIND == "fp8" or KIND == "int8":
        k = start + tl.arange(0, BLOCK_K)
        mask = wanted[:, None] & (k < inputs)[None, :]
        at = codes + row[:, None] * inputs + k[None, :]
        code = tl.load(at, mask=mask, other=0.0).to(tl.float32) if KIND == "fp8" else tl.load(at, mask=mask, other=0)
    else:
        # the low half of each byte comes first
        k = start // 2 + tl.arange(0, BLOCK_K // 2)
        mask = wanted[:, None] & (2 * k < inputs)[None, :]
        byte = tl.load(codes + row[:, None] * (inputs // 2) + k[None, :], mask=mask, other=0).to(tl.int32)
        code = tl.reshape(tl.join(byte & 15, byte >> 4), [BLOCK_N, BLOCK_K])
    if KIND == "fp8":
        return code * scale
    elif KIND == "int4" or KIND == "int8":
        if SHIFT == "zeros":
            zero = by_group(shifts, row, start, inputs, wanted, BLOCK_N, BLOCK_K, GROUP, ROWS, 1).to(tl.int32)
            return (code.to(tl.int32) - zero).to(tl.float32) * scale
        elif SHIFT == "mins":
            low = by_group(shifts, row, start, inputs, wanted, BLOCK_N, BLOCK_K, GROUP, ROWS, 1).to(tl.float32)
            if SPAN >= 0:
                low *= by_group(factors + 1, row, start, inputs, wanted, BLOCK_N, BLOCK_K, SPAN, 1, 2).to(tl.float32)
            return code.to(tl.float32) * scale + low
        else:
            return (code.to(tl.int32) - (8 if KIND == "int4" else 128)).to(tl.float32) * scale
    else:
        return number_of(code, KIND) * scale


@triton.jit
def weights_at(
    stored,
    row,
    start,
    inputs,
    wanted,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    DTYPE: tl.constexpr,
    FORM: tl.constexpr,
    ACROSS: tl.constexpr,
):
    """Loads the weights of outputs ``row`` of all experts, int64 [BLOCK_N], where ``wanted``, at inputs from ``start``
    on.

    Returns ``DTYPE`` [BLOCK_N, BLOCK_K], or transposed if ``ACROSS``. Values outside are 0, or finite past the last
    input.
    """
    if FORM[0] == "plain":
        k = start + tl.arange(0, BLOCK_K)
        inside = k < inputs
        if ACROSS:
            mask = inside[:, None] & wanted[None, :]
            return tl.load(stored[0] + row[None, :] * inputs + k[:, None], mask=mask, other=0.0)
        else:
            mask = wanted[:, None] & inside[None, :]
            return tl.load(stored[0] + row[:, None] * inputs + k[None, :], mask=mask, other=0.0)
    else:
        values = expanded(stored, row, start, inputs, wanted, BLOCK_N, BLOCK_K, FORM).to(DTYPE)
        if ACROSS:
            return tl.trans(values)
        else:
            return values
