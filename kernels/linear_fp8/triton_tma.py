# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""out[t, n] = Σ_g x_scale[t, g] weight_scale[n / 128, g] Σ_k x[t, k] weight[n, k], k in group g of 128: fp8 with inputs
scaled by group and weights by block, in tiles that the copy engine brings (TMA, from Hopper on).

A program multiplies one tile of the output after another, so that it describes the matrices to the engine once. All
outputs of a tile are in one block of the weight's scales: a step has one scale a token.
"""

import triton
import triton.language as tl
from torch import Tensor

from ..attention.triton_decode import multiprocessors
from ..launching.copy_engine import ALIGNED_BYTES, copies_unsupported_reason
from ..launching.launch import cdiv
from ..launching.repeated import prepare
from ..quantize.fp8 import as_kernel_argument, capability, widen
from ..quantize.operands import GROUP, Operands, Product
from ..quantize.scheme import FP8
from ..tuning import Config


@triton.jit(do_not_specialize=["tokens"])
def tma_kernel(
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
    groups,
    OPERAND: tl.constexpr,
    TOGETHER: tl.constexpr,
    AHEAD: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """``groups``: scales of a token, and of 128 rows of the weight. ``OPERAND``: as for
    :func:`.triton_tiles.tiles_kernel`. ``AHEAD``: the next tile's first steps are copied while one is written, which
    costs more instructions a step."""
    inputs = tl.make_tensor_descriptor(x, [tokens, width], [x_stride, 1], [BLOCK_T, BLOCK_K])
    weights = tl.make_tensor_descriptor(weight, [rows, width], [width, 1], [BLOCK_N, BLOCK_K])
    tiles_t, tiles_n = tl.cdiv(tokens, BLOCK_T), tl.cdiv(rows, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles_t * tiles_n, tl.num_programs(0), flatten=AHEAD):
        band = tile // (TOGETHER * tiles_n)
        in_band = tl.minimum(tiles_t - band * TOGETHER, TOGETHER)
        within_band = tile % (TOGETHER * tiles_n)
        first_token = (band * TOGETHER + within_band % in_band) * BLOCK_T
        first_row = within_band // in_band * BLOCK_N
        token = first_token.to(tl.int64) + tl.arange(0, BLOCK_T)
        row = first_row.to(tl.int64) + tl.arange(0, BLOCK_N)
        of_token = x_scale + token * groups
        of_block = weight_scale + first_row.to(tl.int64) // 128 * groups
        total = tl.zeros([BLOCK_T, BLOCK_N], tl.float32)
        scale, block = tl.load(of_token, mask=token < tokens, other=0.0), tl.load(of_block)
        for start in range(0, width, BLOCK_K):
            left, right = inputs.load([first_token, start]), weights.load([first_row, start])
            if OPERAND is not None:
                left, right = widen(left, OPERAND), widen(right, OPERAND)
            # the next step's scales, of which no product waits for the memory
            following = tl.minimum(start + BLOCK_K, width - 1) // 128
            next_scale = tl.load(of_token + following, mask=token < tokens, other=0.0)
            next_block = tl.load(of_block + following)
            total += tl.dot(left, right.T) * (scale * block)[:, None]
            scale, block = next_scale, next_block
        if bias is not None:
            total += tl.load(bias + row, mask=row < rows, other=0.0).to(tl.float32)[None, :]
        inside = (token[:, None] < tokens) & (row[None, :] < rows)
        tl.store(out + token[:, None] * rows + row[None, :], total.to(out.dtype.element_ty), mask=inside)


def scaled_in_blocks(operands: Operands) -> bool:
    """Whether they are of the kinds that this kernel multiplies."""
    return (operands.x.dtype, operands.input_scales, operands.weight_scales) == (FP8, "group", "block")


def unsupported_reason(operands: Operands) -> str | None:
    """Returns why the copy engine cannot bring these operands, as a clause; None if it can."""
    if not scaled_in_blocks(operands):
        return f"it multiplies fp8 inputs in groups of {GROUP} by fp8 weights in blocks"
    if (reason := copies_unsupported_reason(capability())) is not None:
        return reason
    if operands.shape[2] % ALIGNED_BYTES or operands.x.stride(0) % ALIGNED_BYTES:
        return f"rows must begin at multiples of {ALIGNED_BYTES} bytes"
    return None


def prepare_tma(operands: Operands, config: Config, operand: tl.dtype | None, together: int, ahead: bool) -> Product:
    """Prepares the product of operands that :func:`unsupported_reason` allows and that
    :func:`..launching.copy_engine.is_aligned`.

    Args:
        operands: what is multiplied.
        config: ``BLOCK_T``, ``BLOCK_N``, ``BLOCK_K`` and ``PROGRAMS_PER_SM``.
        operand: the dtype that tiles are multiplied in; None: their stored dtype.
        together: tiles of tokens that are adjacent in launch order.
        ahead: as for :func:`tma_kernel`.
    """
    tokens, rows, width = operands.shape
    x, x_scale, weight, weight_scale, bias = operands.tensors
    out_dtype, sizes = operands.out_dtype, {name: config[name] for name in ("BLOCK_T", "BLOCK_N", "BLOCK_K")}
    if GROUP % sizes["BLOCK_N"] or GROUP % sizes["BLOCK_K"]:
        raise ValueError(f"BLOCK_N and BLOCK_K must divide {GROUP}, they are {sizes['BLOCK_N']} and {sizes['BLOCK_K']}")
    tiles = cdiv(tokens, sizes["BLOCK_T"]) * cdiv(rows, sizes["BLOCK_N"])
    start = prepare(
        tma_kernel,
        (min(tiles, multiprocessors(x.device) * config["PROGRAMS_PER_SM"]),),
        (
            as_kernel_argument(x),
            x_scale,
            as_kernel_argument(weight),
            weight_scale,
            bias,
            x.new_empty(0, dtype=out_dtype),
        ),
        *(tokens, rows, width, x.stride(0), operands.x_scale_stride),
        config=Config.of(num_warps=config.num_warps, num_stages=config.num_stages, **sizes),
        OPERAND=operand,
        TOGETHER=together,
        AHEAD=ahead,
    )

    def copied(x: Tensor, x_scale: Tensor | None, weight: Tensor, weight_scale: Tensor, bias: Tensor | None) -> Tensor:
        out = x.new_empty((tokens, rows), dtype=out_dtype)
        start(x, x_scale, weight, weight_scale, bias, out)
        return out

    return copied
