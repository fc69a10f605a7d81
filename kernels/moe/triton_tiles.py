# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Experts for many tokens: tokens are sorted by expert, tiles have one expert each, and then each token is summed.

A token's products are summed along K in one order, and its experts in the order of its routing. So its result depends
on the block sizes and not on the other tokens.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..activation.triton_gate import activated, gated
from ..launching.launch import cdiv, next_power_of_2
from ..launching.repeated import prepare
from ..linear_coded.triton_weights import weights_at
from ..linear_coded.weight import code_form_of, tensors_of
from ..tuning import Config, pick
from .operands import Operands, Run
from .triton_order import most_blocks, prepare_order

OPERATION = "moe_tiles"
_BLOCKS_TOGETHER = 8
"""Blocks that are adjacent in launch order share the weight's tile in the cache."""


@triton.jit
def tile_of(blocks, most, outputs, BLOCK_N: tl.constexpr, TOGETHER: tl.constexpr):
    """Returns for a program the expert of its block, where the block begins and ends, and its tile of outputs."""
    program = tl.program_id(0)
    tiles_n = tl.cdiv(outputs, BLOCK_N)
    band = program // (TOGETHER * tiles_n)
    in_band = tl.minimum(most - band * TOGETHER, TOGETHER)
    within = program % (TOGETHER * tiles_n)
    block = band * TOGETHER + within % in_band
    expert = tl.load(blocks + block)
    return expert.to(tl.int64), tl.load(blocks + most + block), tl.load(blocks + 2 * most + block), within // in_band


@triton.jit(do_not_specialize=["most"])
def gate_up_kernel(
    x,
    weight,
    scales,
    code_factors,
    zeros,
    bias,
    pairs,
    factors,
    blocks,
    out,
    most,
    x_stride,
    inner,
    hidden,
    TOP_K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WEIGHT_INPUT: tl.constexpr,
    GATED: tl.constexpr,
    KIND: tl.constexpr,
    PRECISION: tl.constexpr,
    TOGETHER: tl.constexpr,
    FORM: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """out[row] = act(gate) · up, or act(up), for the token of the pair at ``row`` in the experts' order."""
    DTYPE: tl.constexpr = x.dtype.element_ty
    stored = (weight, scales, code_factors, zeros)
    outputs = 2 * inner if GATED else inner
    expert, begin, end, tile = tile_of(blocks, most, inner, BLOCK_N, TOGETHER)
    if expert >= 0:
        row = begin.to(tl.int64) + tl.arange(0, BLOCK_T)
        there = row < end
        pair = tl.load(pairs + row, mask=there, other=0)
        column = tile.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
        wanted = column < inner
        within = tl.arange(0, BLOCK_K)
        inputs = x + (pair // TOP_K).to(tl.int64)[:, None] * x_stride + within[None, :]
        gates = expert * outputs + column
        gate = tl.zeros([BLOCK_T, BLOCK_N], tl.float32)
        up = tl.zeros([BLOCK_T, BLOCK_N], tl.float32)
        for start in range(0, hidden, BLOCK_K):
            inside = start + within < hidden
            left = tl.load(inputs + start, mask=there[:, None] & inside[None, :], other=0.0)
            right = weights_at(stored, gates, start, hidden, wanted, BLOCK_N, BLOCK_K, DTYPE, FORM, True)
            gate = tl.dot(left, right, gate, input_precision=PRECISION)
            if GATED:
                ups = gates + inner
                right = weights_at(stored, ups, start, hidden, wanted, BLOCK_N, BLOCK_K, DTYPE, FORM, True)
                up = tl.dot(left, right, up, input_precision=PRECISION)
        if WEIGHT_INPUT:
            factor = tl.load(factors + pair, mask=there, other=0.0)[:, None]
            gate *= factor
            up *= factor
        if HAS_BIAS:
            first = bias + expert * outputs + column
            gate += tl.load(first, mask=wanted, other=0.0).to(tl.float32)[None, :]
            if GATED:
                up += tl.load(first + inner, mask=wanted, other=0.0).to(tl.float32)[None, :]
        made = (gated(gate, up, KIND) if GATED else activated(gate, KIND)).to(out.dtype.element_ty)
        tl.store(out + row[:, None] * inner + column[None, :], made, mask=there[:, None] & wanted[None, :])


@triton.jit(do_not_specialize=["most"])
def down_kernel(
    x,
    weight,
    scales,
    code_factors,
    zeros,
    bias,
    pairs,
    blocks,
    out,
    most,
    inner,
    hidden,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    TOGETHER: tl.constexpr,
    FORM: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """out[pair] = the expert's output; row ``row`` of x belongs to the pair at ``row`` in the experts' order."""
    DTYPE: tl.constexpr = x.dtype.element_ty
    stored = (weight, scales, code_factors, zeros)
    expert, begin, end, tile = tile_of(blocks, most, hidden, BLOCK_N, TOGETHER)
    if expert >= 0:
        row = begin.to(tl.int64) + tl.arange(0, BLOCK_T)
        there = row < end
        pair = tl.load(pairs + row, mask=there, other=0).to(tl.int64)
        column = tile.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
        wanted = column < hidden
        within = tl.arange(0, BLOCK_K)
        inputs = x + row[:, None] * inner + within[None, :]
        rows = expert * hidden + column
        total = tl.zeros([BLOCK_T, BLOCK_N], tl.float32)
        for start in range(0, inner, BLOCK_K):
            inside = start + within < inner
            left = tl.load(inputs + start, mask=there[:, None] & inside[None, :], other=0.0)
            right = weights_at(stored, rows, start, inner, wanted, BLOCK_N, BLOCK_K, DTYPE, FORM, True)
            total = tl.dot(left, right, total, input_precision=PRECISION)
        if HAS_BIAS:
            total += tl.load(bias + expert * hidden + column, mask=wanted, other=0.0).to(tl.float32)[None, :]
        to = out + pair[:, None] * hidden + column[None, :]
        tl.store(to, total.to(out.dtype.element_ty), mask=there[:, None] & wanted[None, :])


@triton.jit
def sum_kernel(
    made, chosen, factors, out, hidden, experts, TOP_K: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr
):
    """out[token] = Σ over its pairs; an expert out of range adds nothing."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for place in range(TOP_K):
        pair = token * TOP_K + place
        expert = tl.load(chosen + pair)
        there = (column < hidden) & (expert >= 0) & (expert < experts)
        value = tl.load(made + pair * hidden + column, mask=there, other=0.0).to(tl.float32)
        if WEIGHTED:
            value *= tl.load(factors + pair)
        total += value
    tl.store(out + token * hidden + column, total.to(out.dtype.element_ty), mask=column < hidden)


def prepare_tiles(of: Operands) -> Run:
    """Prepares the kernels for any number of tokens."""
    config = pick(OPERATION, key(of), default(of))
    tokens, top_k = of.chosen.shape
    experts, hidden, inner = of.down.shape
    order_by_expert = prepare_order(of.chosen, experts, config["BLOCK_T"])
    most = most_blocks(tokens * top_k, experts, config["BLOCK_T"])
    made = outputs = out = of.x.new_empty(0)
    pairs = blocks = of.chosen
    precision = "ieee" if of.x.dtype == torch.float32 else "tf32"
    gate_up = prepare(
        gate_up_kernel,
        (most * cdiv(inner, config["BLOCK_N"]),),
        (of.x, *tensors_of(of.gate_up), of.gate_up_bias, pairs, of.factors, blocks, made),
        *(most, of.x.stride(0), inner, hidden),
        config=config,
        TOP_K=top_k,
        HAS_BIAS=of.gate_up_bias is not None,
        WEIGHT_INPUT=of.weight_input,
        GATED=of.gated,
        KIND=of.activation,
        PRECISION=precision,
        FORM=code_form_of(of.gate_up),
        TOGETHER=_BLOCKS_TOGETHER,
    )
    # one accumulator in place of two: tiles may be twice as wide
    wide = config.replaced({**config.to_json(), "BLOCK_N": 2 * config["BLOCK_N"]})
    down = prepare(
        down_kernel,
        (most * cdiv(hidden, wide["BLOCK_N"]),),
        (made, *tensors_of(of.down), of.down_bias, pairs, blocks, outputs),
        *(most, inner, hidden),
        config=wide,
        HAS_BIAS=of.down_bias is not None,
        PRECISION=precision,
        FORM=code_form_of(of.down),
        TOGETHER=_BLOCKS_TOGETHER,
    )
    block = min(1024, next_power_of_2(hidden))
    add_up = prepare(
        sum_kernel,
        (tokens, cdiv(hidden, block)),
        (outputs, of.chosen, of.factors, out),
        *(hidden, experts),
        config=Config.of(num_warps=4),
        TOP_K=top_k,
        WEIGHTED=not of.weight_input,
        BLOCK=block,
    )

    def run(of: Operands) -> Tensor:
        order = order_by_expert(of.chosen)
        made, outputs = (of.x.new_empty((tokens * top_k, width)) for width in (inner, hidden))
        out = of.x.new_empty((tokens, hidden))
        gate_up(of.x, *tensors_of(of.gate_up), of.gate_up_bias, order.pairs, of.factors, order.blocks, made)
        down(made, *tensors_of(of.down), of.down_bias, order.pairs, order.blocks, outputs)
        add_up(outputs, of.chosen, of.factors, out)
        return out

    return run


def key(of: Operands) -> str:
    """Returns the table's key; for an invariant call it does not depend on the number of tokens."""
    return f"{of.sizes} {'any' if of.invariant else f't{_bucket(of.rows_of_expert)}'} {of.dtype_name}"


def _bucket(rows: int) -> int:
    return next((size for size in (16, 64, 256) if rows <= size), 1024)


def default(of: Operands) -> Config:
    if of.x.dtype == torch.float32:
        return Config.of(num_warps=4, num_stages=2, BLOCK_T=16, BLOCK_N=32, BLOCK_K=32)
    if of.invariant or of.rows_of_expert <= 16:
        return Config.of(num_warps=4, num_stages=4, BLOCK_T=16, BLOCK_N=32, BLOCK_K=128)
    if of.rows_of_expert <= 64:
        return Config.of(num_warps=4, num_stages=4, BLOCK_T=64, BLOCK_N=64, BLOCK_K=64)
    return Config.of(num_warps=8, num_stages=3, BLOCK_T=128, BLOCK_N=64, BLOCK_K=64)


def candidates(of: Operands) -> list[Config]:
    """Returns block sizes that fit in shared memory."""
    tile_sizes = [(16, 32, 4), (16, 64, 4), (32, 64, 4), (64, 64, 4), (64, 128, 8), (128, 64, 8), (128, 128, 8)]
    return [
        Config.of(num_warps=warps, num_stages=stages, BLOCK_T=tokens, BLOCK_N=rows, BLOCK_K=width)
        for tokens, rows, warps in tile_sizes
        if tokens <= max(16, 2 * of.rows_of_expert)
        for width in (64, 128)
        for stages in (3, 4)
        if stages * (tokens + 2 * rows) * width * of.x.itemsize <= 200 * 1024
    ]
