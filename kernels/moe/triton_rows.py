# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Experts for a few tokens: weights are read for each pair of a token and an expert, and nothing is sorted.

Such a step is limited by the bandwidth for weights, so programs have a few outputs each. Two tokens that share an
expert find its weights in the L2 cache.
"""

import triton
import triton.language as tl
from torch import Tensor

from ..activation.triton_gate import activated, gated
from ..launching.launch import cdiv
from ..launching.repeated import prepare
from ..linear_coded.triton_weights import weights_at
from ..linear_coded.weight import code_form_of, tensors_of
from ..tuning import Config, pick
from .operands import Operands, Run

OPERATION = "moe_rows"


@triton.jit
def gate_up_kernel(
    x,
    weight,
    scales,
    code_factors,
    zeros,
    bias,
    chosen,
    factors,
    out,
    x_stride,
    inner,
    hidden,
    experts,
    TOP_K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WEIGHT_INPUT: tl.constexpr,
    GATED: tl.constexpr,
    KIND: tl.constexpr,
    FORM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """out[pair] = act(gate) · up, or act(up)."""
    DTYPE: tl.constexpr = x.dtype.element_ty
    stored = (weight, scales, code_factors, zeros)
    outputs = 2 * inner if GATED else inner
    pair = tl.program_id(0).to(tl.int64)
    expert = tl.load(chosen + pair).to(tl.int64)
    column = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    wanted = (column < inner) & (expert >= 0) & (expert < experts)
    within = tl.arange(0, BLOCK_K)
    inputs = x + pair // TOP_K * x_stride + within
    gates = expert * outputs + column
    gate = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    up = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    for start in range(0, hidden, BLOCK_K):
        inside = start + within < hidden
        row = tl.load(inputs + start, mask=inside, other=0.0).to(tl.float32)[None, :]
        values = weights_at(stored, gates, start, hidden, wanted, BLOCK_N, BLOCK_K, DTYPE, FORM, False)
        gate += values.to(tl.float32) * row
        if GATED:
            ups = gates + inner
            values = weights_at(stored, ups, start, hidden, wanted, BLOCK_N, BLOCK_K, DTYPE, FORM, False)
            up += values.to(tl.float32) * row
    gate_sum, up_sum = tl.sum(gate, 1), tl.sum(up, 1)
    if WEIGHT_INPUT:
        factor = tl.load(factors + pair)
        gate_sum *= factor
        up_sum *= factor
    if HAS_BIAS:
        first = bias + expert * outputs + column
        gate_sum += tl.load(first, mask=wanted, other=0.0).to(tl.float32)
        if GATED:
            up_sum += tl.load(first + inner, mask=wanted, other=0.0).to(tl.float32)
    made = (gated(gate_sum, up_sum, KIND) if GATED else activated(gate_sum, KIND)).to(out.dtype.element_ty)
    tl.store(out + pair * inner + column, made, mask=wanted)


@triton.jit
def down_kernel(
    x,
    weight,
    scales,
    code_factors,
    zeros,
    bias,
    chosen,
    factors,
    out,
    inner,
    hidden,
    experts,
    TOP_K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WEIGHTED: tl.constexpr,
    FORM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """out[token] = Σ over its pairs, in their order; an expert out of range adds nothing."""
    DTYPE: tl.constexpr = x.dtype.element_ty
    stored = (weight, scales, code_factors, zeros)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    within = tl.arange(0, BLOCK_K)
    total = tl.zeros([BLOCK_N], tl.float32)
    for place in range(TOP_K):
        pair = token * TOP_K + place
        expert = tl.load(chosen + pair).to(tl.int64)
        is_expert = (expert >= 0) & (expert < experts)
        wanted = (column < hidden) & is_expert
        rows = expert * hidden + column
        products = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
        for start in range(0, inner, BLOCK_K):
            inside = start + within < inner
            row = tl.load(x + pair * inner + start + within, mask=inside & is_expert, other=0.0).to(tl.float32)
            values = weights_at(stored, rows, start, inner, wanted, BLOCK_N, BLOCK_K, DTYPE, FORM, False)
            products += values.to(tl.float32) * row[None, :]
        value = tl.sum(products, 1)
        if HAS_BIAS:
            value += tl.load(bias + expert * hidden + column, mask=wanted, other=0.0).to(tl.float32)
        value = value.to(out.dtype.element_ty).to(tl.float32)
        if WEIGHTED:
            value *= tl.load(factors + pair)
        total += value
    tl.store(out + token * hidden + column, total.to(out.dtype.element_ty), mask=column < hidden)


def prepare_rows(of: Operands) -> Run:
    """Prepares the kernels for any number of tokens; they suit a few."""
    config = pick(OPERATION, key(of), default(of))
    tokens, top_k = of.chosen.shape
    experts, hidden, inner = of.down.shape
    made = out = of.x.new_empty(0)
    gate_up = prepare(
        gate_up_kernel,
        (tokens * top_k, cdiv(inner, config["BLOCK_N"])),
        (of.x, *tensors_of(of.gate_up), of.gate_up_bias, of.chosen, of.factors, made),
        *(of.x.stride(0), inner, hidden, experts),
        config=config,
        TOP_K=top_k,
        HAS_BIAS=of.gate_up_bias is not None,
        WEIGHT_INPUT=of.weight_input,
        GATED=of.gated,
        KIND=of.activation,
        FORM=code_form_of(of.gate_up),
    )
    down = prepare(
        down_kernel,
        (tokens, cdiv(hidden, config["BLOCK_N"])),
        (made, *tensors_of(of.down), of.down_bias, of.chosen, of.factors, out),
        *(inner, hidden, experts),
        config=config,
        TOP_K=top_k,
        HAS_BIAS=of.down_bias is not None,
        WEIGHTED=not of.weight_input,
        FORM=code_form_of(of.down),
    )

    def run(of: Operands) -> Tensor:
        made, out = of.x.new_empty((tokens * top_k, inner)), of.x.new_empty((tokens, hidden))
        gate_up(of.x, *tensors_of(of.gate_up), of.gate_up_bias, of.chosen, of.factors, made)
        down(made, *tensors_of(of.down), of.down_bias, of.chosen, of.factors, out)
        return out

    return run


def key(of: Operands) -> str:
    return f"{of.sizes} t{len(of.chosen)} {of.dtype_name}"


def default(of: Operands) -> Config:
    return Config.of(num_warps=4, num_stages=3, BLOCK_N=16, BLOCK_K=256)


def candidates(of: Operands) -> list[Config]:
    return [
        Config.of(num_warps=warps, num_stages=stages, BLOCK_N=outputs, BLOCK_K=width)
        for outputs in (4, 8, 16)
        for width in (128, 256, 512)
        for warps in (2, 4, 8)
        for stages in (2, 3, 4)
    ]
