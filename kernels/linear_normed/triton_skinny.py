# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""out = gate(norm(x) Wᵀ + b) of few rows, given the sums of squares of ``x``.

A program norms each tile of ``x`` in registers on its way to the tensor cores, and rounds it as the norm's own kernel
does. With a gate it multiplies the tile by its gates' rows of the weight and by the others'. As in
:mod:`..linear_fp8.triton_skinny` the weight is the left operand; K is not split, since a gate needs the whole sum.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..activation import ActivationKind
from ..activation.triton_gate import gated
from ..launching.dependent import fetch_weights, follow
from ..launching.launch import cdiv
from ..launching.repeated import prepare
from ..launching.warpgroup import waited
from ..linear_fp8.triton_skinny import block_of_tokens
from ..norm.triton_tiles import weighted
from ..quantize.fp8 import capability
from ..tuning import Config, pick
from . import NormedInputs, NormedProduct, Prepared
from .triton_row import row_key

OPERATION = "normed_skinny"
LIBRARY = Config.of(BLOCK_T=1, BLOCK_N=1, BLOCK_K=1)
"""Stands for the separate operations, which run if no table has better sizes."""


@triton.jit(do_not_specialize=["tokens", "parts"])
def normed_skinny_kernel(
    x,
    squares,
    norm,
    weight,
    bias,
    out,
    tokens,
    parts,
    outputs,
    width,
    eps,
    PLUS_ONE: tl.constexpr,
    KIND: tl.constexpr,
    HOPPER: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """squares [parts, tokens], float32: those of each row of ``x``, still to be added. KIND: the activation of the
    gate; empty: no gate."""
    AT_ONCE: tl.constexpr = 16
    row = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    fetch_weights(weight, row, outputs, 0, width, BLOCK_K, DEPENDENT)
    if KIND != "":
        fetch_weights(weight, row + outputs, 2 * outputs, 0, width, BLOCK_K, DEPENDENT)
    follow(DEPENDENT)
    DTYPE: tl.constexpr = x.dtype.element_ty
    token = tl.arange(0, BLOCK_T)
    there, real = (row < outputs)[:, None], token < tokens
    square = tl.zeros([BLOCK_T], tl.float32)
    for first in range(0, parts, AT_ONCE):
        part = first + tl.arange(0, AT_ONCE)
        found = squares + part[:, None] * tokens + token[None, :]
        square += tl.sum(tl.load(found, mask=(part < parts)[:, None] & real[None, :], other=0.0), 0)
    factor = tl.rsqrt(square / width + eps)[None, :]
    within = tl.arange(0, BLOCK_K)
    weights = weight + row[:, None] * width + within[None, :]
    inputs = x + token[None, :].to(tl.int64) * width + within[:, None]
    to_up = tl.full([], outputs, tl.int64) * width
    made = tl.zeros([BLOCK_N, BLOCK_T], tl.float32)
    up = tl.zeros([BLOCK_N, BLOCK_T], tl.float32)
    for start in range(0, width, BLOCK_K):
        inside = start + within < width
        normed = tl.load(inputs + start, mask=inside[:, None] & real[None, :], other=0.0).to(tl.float32) * factor
        scale = tl.load(norm + start + within, mask=inside, other=0.0)
        right = weighted(normed, scale[:, None], PLUS_ONE)
        left = tl.load(weights + start, mask=there & inside[None, :], other=0.0)
        made = tl.dot(left, right, made)
        if KIND != "":
            left = tl.load(weights + to_up + start, mask=there & inside[None, :], other=0.0)
            up = waited(tl.dot(left, right, up), HOPPER)
        made = waited(made, HOPPER)
    if bias is not None:
        made += tl.load(bias + row[:, None], mask=there, other=0.0).to(tl.float32)
    if KIND != "":
        if bias is not None:
            up += tl.load(bias + outputs + row[:, None], mask=there, other=0.0).to(tl.float32)
        made = gated(made.to(DTYPE).to(tl.float32), up.to(DTYPE).to(tl.float32), KIND)
    target = out + token[None, :].to(tl.int64) * outputs + row[:, None]
    tl.store(target, made.to(DTYPE), mask=there & real[None, :])


def prepare_skinny(inputs: NormedInputs, eps: float, plus_one: bool, kind: ActivationKind | None) -> Prepared:
    """Prepares the product of these and other tensors of the same layout, with squares and without a residual."""
    x, norm, weight, _, squares, bias = inputs
    assert squares is not None
    config = config_of(x, weight, kind)
    if config == LIBRARY:
        config = default(x.shape[0])
    tokens, (rows, width) = x.shape[0], weight.shape
    if config["BLOCK_T"] < tokens:
        raise ValueError(f"BLOCK_T must hold all {tokens} tokens, not {config['BLOCK_T']}")
    outputs = rows if kind is None else rows // 2
    start = prepare(
        normed_skinny_kernel,
        (cdiv(outputs, config["BLOCK_N"]),),
        (x, squares, norm, weight, bias, x),
        *(tokens, squares.shape[0], outputs, width, float(eps)),
        config=config,
        PLUS_ONE=plus_one,
        KIND=kind or "",
        HOPPER=capability() == 90,
    )

    def normed(inputs: NormedInputs) -> NormedProduct:
        x, norm, weight, _, squares, bias = inputs
        product = x.new_empty((tokens, outputs))
        start(x, squares, norm, weight, bias, product)
        return NormedProduct(product, x)

    return normed


def config_of(x: Tensor, weight: Tensor, kind: ActivationKind | None) -> Config:
    """Returns the table's block sizes; :data:`LIBRARY` if it has none."""
    key = skinny_key(x.shape[0], weight.shape[0], weight.shape[1], x.dtype, gated=kind is not None)
    return pick(OPERATION, key, LIBRARY)


def skinny_key(tokens: int, rows: int, width: int, dtype: torch.dtype, *, gated: bool) -> str:
    return f"{row_key(rows, width, dtype, gated=gated)}_t{block_of_tokens(tokens)}"


def default(tokens: int) -> Config:
    """Returns the block sizes if this kernel is asked for by name and the table has none."""
    return Config.of(num_warps=4, num_stages=3, BLOCK_T=block_of_tokens(tokens), BLOCK_N=64, BLOCK_K=128)
