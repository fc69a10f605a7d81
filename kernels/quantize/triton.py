# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""scale = max|x| / largest, values = round(x * (1 / scale)), for a row, a group of a row, or a given scale."""

import triton
import triton.language as tl
from torch import Tensor

from ..launching.launch import cdiv, next_power_of_2
from ..launching.repeated import Start, prepare
from ..tuning import Config
from .fp8 import as_kernel_argument, round_to_fp8
from .reference import SMALLEST_SCALE
from .scheme import LARGEST, ActivationScheme, Quantized

MAX_BLOCK = 32768
"""Values of a row that one program holds in registers; a longer row is read twice."""


@triton.jit
def greatest_magnitude(x, axis: tl.constexpr):
    """Returns max|x| of float32 ``x`` along an axis; NaN if there is one: magnitudes are compared as integers, which
    order like floats."""
    bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return tl.max(bits, axis).to(tl.float32, bitcast=True)


@triton.jit
def scale_of(largest, GREATEST: tl.constexpr, SMALLEST_SCALE: tl.constexpr):
    scale = tl.div_rn(largest, tl.full(largest.shape, GREATEST, tl.float32))
    return tl.where(scale < SMALLEST_SCALE, SMALLEST_SCALE, scale)


@triton.jit
def reciprocal(scale):
    return tl.div_rn(tl.full(scale.shape, 1.0, tl.float32), scale)


@triton.jit
def rounded(x, GREATEST: tl.constexpr, OUT: tl.constexpr):
    """Clamps ``x`` float32 to ±``GREATEST`` and rounds it half to even to ``OUT``: int8, float8e4nv, or its bits."""
    # comparisons with NaN are false, so NaN stays
    x = tl.where(x > GREATEST, GREATEST, x)
    x = tl.where(x < -GREATEST, -GREATEST, x)
    if tl.int8 == OUT:
        # at 1.5 * 2^23 the last bit of a float32 is worth one, so that the addition rounds
        return ((x + 12582912.0) - 12582912.0).to(tl.int32).to(tl.int8)
    else:
        return round_to_fp8(x, OUT)


@triton.jit
def quantize_rows_kernel(
    x,
    values,
    scales,
    width,
    x_stride,
    GREATEST: tl.constexpr,
    SMALLEST_SCALE: tl.constexpr,
    WHOLE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row per program. ``WHOLE``: it fits in one block."""
    row = tl.program_id(0).to(tl.int64)
    x += row * x_stride
    values += row * width
    columns = tl.arange(0, BLOCK)
    OUT: tl.constexpr = values.dtype.element_ty
    if WHOLE:
        inside = columns < width
        wide = tl.load(x + columns, mask=inside, other=0.0).to(tl.float32)
        scale = scale_of(greatest_magnitude(wide, 0), GREATEST, SMALLEST_SCALE)
        tl.store(scales + row, scale)
        tl.store(values + columns, rounded(wide * reciprocal(scale), GREATEST, OUT), mask=inside)
    else:
        largest = tl.zeros([BLOCK], tl.int32)
        for start in range(0, width, BLOCK):
            wide = tl.load(x + start + columns, mask=start + columns < width, other=0.0).to(tl.float32)
            largest = tl.maximum(largest, wide.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
        scale = scale_of(tl.max(largest, 0).to(tl.float32, bitcast=True), GREATEST, SMALLEST_SCALE)
        tl.store(scales + row, scale)
        inverse = reciprocal(scale)
        for start in range(0, width, BLOCK):
            inside = start + columns < width
            wide = tl.load(x + start + columns, mask=inside, other=0.0).to(tl.float32)
            tl.store(values + start + columns, rounded(wide * inverse, GREATEST, OUT), mask=inside)


@triton.jit
def quantize_groups_kernel(
    x,
    values,
    scales,
    width,
    groups,
    x_stride,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    GREATEST: tl.constexpr,
    SMALLEST_SCALE: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
):
    """``BLOCK_GROUPS`` groups of one row per program."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * BLOCK_GROUPS + tl.arange(0, BLOCK_GROUPS)
    within = tl.arange(0, PADDED)
    columns = group[:, None] * GROUP + within[None, :]
    inside = (within[None, :] < GROUP) & (columns < width)
    wide = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    scale = scale_of(greatest_magnitude(wide, 1), GREATEST, SMALLEST_SCALE)
    tl.store(scales + row * groups + group, scale, mask=group < groups)
    out = rounded(wide * reciprocal(scale)[:, None], GREATEST, values.dtype.element_ty)
    tl.store(values + row * width + columns, out, mask=inside)


@triton.jit
def quantize_tensor_kernel(x, values, scale, width, x_stride, GREATEST: tl.constexpr, BLOCK: tl.constexpr):
    """One block of one row per program, with a scale from memory."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    wide = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    inverse = reciprocal(tl.load(scale))
    tl.store(values + row * width + columns, rounded(wide * inverse, GREATEST, values.dtype.element_ty), mask=inside)


def prepare_quantize(x: Tensor, out: Quantized, scheme: ActivationScheme) -> Start:
    """Prepares a launch with ``x`` [T, K], and the values and scales of ``out``; see
    :func:`stentor.kernels.quantize`."""
    rows, width = x.shape
    tensors = (x, as_kernel_argument(out.values), out.scales)
    greatest = LARGEST[scheme.dtype]
    if scheme.granularity == "tensor":
        block = min(next_power_of_2(width), 4096)
        config = Config.of(num_warps=_warps(block), BLOCK=block)
        grid = (rows, cdiv(width, block))
        return prepare(quantize_tensor_kernel, grid, tensors, width, x.stride(0), config=config, GREATEST=greatest)
    if scheme.granularity == "token":
        block = min(next_power_of_2(width), MAX_BLOCK)
        return prepare(
            quantize_rows_kernel,
            (rows,),
            tensors,
            width,
            x.stride(0),
            config=Config.of(num_warps=_warps(block), BLOCK=block),
            GREATEST=greatest,
            SMALLEST_SCALE=SMALLEST_SCALE,
            WHOLE=block >= width,
        )
    groups = cdiv(width, scheme.group)
    padded = next_power_of_2(scheme.group)
    block_groups = max(1, min(next_power_of_2(groups), 4096 // padded))
    return prepare(
        quantize_groups_kernel,
        (rows, cdiv(groups, block_groups)),
        tensors,
        width,
        groups,
        x.stride(0),
        config=Config.of(num_warps=_warps(block_groups * padded), BLOCK_GROUPS=block_groups),
        GROUP=scheme.group,
        PADDED=padded,
        GREATEST=greatest,
        SMALLEST_SCALE=SMALLEST_SCALE,
    )


def _warps(elements: int) -> int:
    """Returns enough warps that a thread holds 32 elements or fewer, up to 16."""
    return next((warps for warps in (1, 2, 4, 8) if elements <= 1024 * warps), 16)
