# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Weights as kernels multiply by them: loaded as they are, or expanded from their codes."""

import triton
import triton.language as tl
from torch import Tensor

from .weight import CodedMatrices


@triton.jit
def e2m1(code):
    """The number of a code, float32: a sign, two bits of exponent, one of fraction."""
    exponent, fraction = (code >> 1) & 3, code & 1
    twice = tl.where(exponent == 0, fraction, (2 + fraction) << tl.maximum(exponent - 1, 0))
    return tl.where(code >= 8, -0.5, 0.5) * twice.to(tl.float32)


@triton.jit
def by_group(groups, row, start, inputs, wanted, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, FORM: tl.constexpr):
    """One value for each group of inputs, spread over [BLOCK_N, BLOCK_K], or [BLOCK_N, 1] where a block is within
    one."""
    GROUP: tl.constexpr = FORM[1]
    ROWS: tl.constexpr = FORM[2]
    if GROUP == 0:
        return tl.load(groups + row // ROWS, mask=wanted, other=0.0)[:, None]
    elif GROUP < BLOCK_K:
        each = tl.cdiv(inputs, GROUP)
        first = row // ROWS * each + start // GROUP
        number = tl.arange(0, BLOCK_K // GROUP)
        mask = wanted[:, None] & (start // GROUP + number < each)[None, :]
        values = tl.load(groups + first[:, None] + number[None, :], mask=mask, other=0.0)
        spread = tl.broadcast_to(values[:, :, None], [BLOCK_N, BLOCK_K // GROUP, GROUP])
        return tl.reshape(spread, [BLOCK_N, BLOCK_K])
    else:
        at = row // ROWS * tl.cdiv(inputs, GROUP) + start // GROUP
        return tl.load(groups + at, mask=wanted, other=0.0)[:, None]


@triton.jit
def expanded(stored, row, start, inputs, wanted, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, FORM: tl.constexpr):
    """float32 [BLOCK_N, BLOCK_K]; what is outside is no weight, but finite."""
    CODES: tl.constexpr = FORM[0]
    codes, scales, factors, zeros = stored
    scale = by_group(scales, row, start, inputs, wanted, BLOCK_N, BLOCK_K, FORM)
    scale = (scale.to(tl.int32) << 23).to(tl.float32, bitcast=True) if CODES == "mxfp4" else scale.to(tl.float32)
    if CODES == "nvfp4":
        scale *= tl.load(factors + row, mask=wanted, other=0.0)[:, None]
    if CODES == "fp8":
        k = start + tl.arange(0, BLOCK_K)
        mask = wanted[:, None] & (k < inputs)[None, :]
        return tl.load(codes + row[:, None] * inputs + k[None, :], mask=mask, other=0.0).to(tl.float32) * scale
    else:
        # of each byte the low half is the first
        k = start // 2 + tl.arange(0, BLOCK_K // 2)
        mask = wanted[:, None] & (2 * k < inputs)[None, :]
        byte = tl.load(codes + row[:, None] * (inputs // 2) + k[None, :], mask=mask, other=0).to(tl.int32)
        code = tl.reshape(tl.join(byte & 15, byte >> 4), [BLOCK_N, BLOCK_K])
        if CODES == "int4":
            if FORM[3]:
                zero = by_group(zeros, row, start, inputs, wanted, BLOCK_N, BLOCK_K, FORM).to(tl.int32)
                return (code - zero).to(tl.float32) * scale
            else:
                return (code - 8).to(tl.float32) * scale
        else:
            return e2m1(code) * scale


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
    """Those of outputs ``row`` of all experts, int64 [BLOCK_N], where ``wanted``, at inputs from ``start`` on, of
    ``DTYPE``: [BLOCK_N, BLOCK_K], or ``ACROSS``. Outside they are 0, or where the inputs end finite."""
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


def tensors_of(weight: Tensor | CodedMatrices) -> tuple[Tensor | None, ...]:
    """What :func:`weights_at` reads: weights or codes, scales, factors and zeros."""
    if isinstance(weight, CodedMatrices):
        return weight.codes, weight.scales, weight.factors, weight.zeros
    return weight, None, None, None


def code_form_of(weight: Tensor | CodedMatrices) -> tuple[str, int, int, bool]:
    """Its kind of codes, inputs (0: all) and outputs that share a scale, and whether it has zeros."""
    if isinstance(weight, CodedMatrices):
        group = 0 if weight.group >= weight.shape[2] else weight.group
        return weight.kind, group, weight.rows, weight.zeros is not None
    return "plain", 1, 1, False
