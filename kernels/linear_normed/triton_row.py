# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""out = gate(norm(x + residual) Wᵀ + b) of one row.

Each of a few programs norms the whole row, keeps it in registers, and streams its share of the weight's rows. All of
them read ``residual``, so its sum with ``x`` is written elsewhere.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..activation import ActivationKind
from ..activation.triton_gate import gated
from ..attention.triton_decode import multiprocessors
from ..launching.dependent import fetch_weights, follow
from ..launching.launch import cdiv, next_power_of_2
from ..launching.repeated import prepare
from ..linear.triton_gemv import gemv_key
from ..norm.triton_tiles import weighted
from ..tuning import Config, pick
from . import NormedInputs, NormedProduct, Prepared

OPERATION = "normed_row"
LIBRARY = Config.of(BLOCK_N=1, PROGRAMS_PER_SM=1, STAGES=0)
"""Stands for the separate operations, which run if no table has better sizes."""
DEFAULT = Config.of(num_warps=8, BLOCK_N=2, PROGRAMS_PER_SM=2, STAGES=2)
"""The block sizes if this kernel is asked for by name and the table has none."""


@triton.jit
def weights_times(weight, row, there, columns, inside, token, WIDTH: tl.constexpr):
    """Returns Σ_k weight[row, k] token[k], float32."""
    values = tl.load(
        weight + row[:, None] * WIDTH + columns[None, :],
        mask=there[:, None] & inside[None, :],
        other=0.0,
        eviction_policy="evict_first",
    )
    return tl.sum(values.to(tl.float32) * token[None, :], 1)


@triton.jit
def normed_row_kernel(
    x,
    residual,
    norm,
    weight,
    bias,
    out,
    total,
    outputs,
    eps,
    WIDTH: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PLUS_ONE: tl.constexpr,
    KIND: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """KIND: the activation of the gate; empty: no gate."""
    first = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N).to(tl.int64)
    fetch_weights(weight, first, outputs, 0, WIDTH, BLOCK_K, DEPENDENT)
    if KIND != "":
        fetch_weights(weight, first + outputs, 2 * outputs, 0, WIDTH, BLOCK_K, DEPENDENT)
    follow(DEPENDENT)
    DTYPE: tl.constexpr = x.dtype.element_ty
    columns = tl.arange(0, BLOCK_K)
    inside = columns < WIDTH
    token = tl.load(x + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(norm + columns, mask=inside, other=0.0)
    if residual is not None:
        summed = (token + tl.load(residual + columns, mask=inside, other=0.0).to(tl.float32)).to(DTYPE)
        tl.store(total + columns, summed, mask=inside & (tl.program_id(0) == 0))
        token = summed.to(tl.float32)
    normed = token * tl.rsqrt(tl.sum(token * token, 0) / WIDTH + eps)
    token = weighted(normed, scale, PLUS_ONE).to(tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(outputs, BLOCK_N), tl.num_programs(0), num_stages=STAGES):
        row = tile * BLOCK_N + tl.arange(0, BLOCK_N).to(tl.int64)
        there = row < outputs
        made = weights_times(weight, row, there, columns, inside, token, WIDTH)
        if bias is not None:
            made += tl.load(bias + row, mask=there, other=0.0).to(tl.float32)
        if KIND != "":
            up = weights_times(weight, row + outputs, there, columns, inside, token, WIDTH)
            if bias is not None:
                up += tl.load(bias + outputs + row, mask=there, other=0.0).to(tl.float32)
            made = gated(made.to(DTYPE).to(tl.float32), up.to(DTYPE).to(tl.float32), KIND)
        tl.store(out + row, made.to(DTYPE), mask=there)


def prepare_row(inputs: NormedInputs, eps: float, plus_one: bool, kind: ActivationKind | None) -> Prepared:
    """Prepares the product of these and other tensors of the same layout. It adds up the squares itself."""
    x, norm, weight, residual, _, bias = inputs
    config = config_of(x, weight, kind)
    if config == LIBRARY:
        config = DEFAULT
    rows, width = weight.shape
    outputs = rows if kind is None else rows // 2
    programs = min(cdiv(outputs, config["BLOCK_N"]), multiprocessors(x.device) * config["PROGRAMS_PER_SM"])
    start = prepare(
        normed_row_kernel,
        (programs,),
        (x, residual, norm, weight, bias, x, residual),
        outputs,
        float(eps),
        config=Config.of(
            num_warps=config.num_warps,
            num_stages=config.num_stages,
            BLOCK_N=config["BLOCK_N"],
            STAGES=config["STAGES"],
        ),
        WIDTH=width,
        BLOCK_K=max(16, next_power_of_2(width)),
        PLUS_ONE=plus_one,
        KIND=kind or "",
    )

    def normed(inputs: NormedInputs) -> NormedProduct:
        x, norm, weight, residual, _, bias = inputs
        product, total = x.new_empty((1, outputs)), None if residual is None else torch.empty_like(x)
        start(x, residual, norm, weight, bias, product, total)
        return NormedProduct(product, x if total is None else total)

    return normed


def config_of(x: Tensor, weight: Tensor, kind: ActivationKind | None) -> Config:
    """Returns the table's block sizes; :data:`LIBRARY` if it has none."""
    return pick(OPERATION, row_key(weight.shape[0], weight.shape[1], x.dtype, gated=kind is not None), LIBRARY)


def row_key(rows: int, width: int, dtype: torch.dtype, *, gated: bool) -> str:
    return f"{gemv_key(rows, width, dtype)}{'_gated' if gated else ''}"
