# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The selective scan: a program takes some channels of a row through its tokens one by one.

A thread keeps whole channels in its registers, so a channel's output is summed within one thread.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launching.launch import cdiv, launch, next_power_of_2
from ..state_rows import StateRows
from ..state_slots import load_state, store_state
from ..tuning import Config, pick

OPERATION = "selective_scan"


@triton.jit
def _softplus(x):
    """Returns log(1 + e^x). With t = e^-|x|, log(1 + t) is twice the inverse hyperbolic tangent of t / (2 + t)."""
    t = tl.exp(-tl.abs(x))
    s = t / (t + 2.0)
    z = s * s
    p = z * (2.0 / 15) + 2.0 / 13
    p = p * z + 2.0 / 11
    p = p * z + 2.0 / 9
    p = p * z + 2.0 / 7
    p = p * z + 2.0 / 5
    p = p * z + 2.0 / 3
    p = p * z + 2.0
    return p * s + tl.maximum(x, 0.0)


@triton.jit
def _scan_kernel(
    x,
    gate,
    dt,
    dt_bias,
    A,
    B,
    C,
    D,
    state,
    out,
    cu_seqlens,
    reads,
    writes,
    x_stride,
    gate_stride,
    dt_stride,
    B_stride,
    C_stride,
    CHANNELS: tl.constexpr,
    STATE_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    row = tl.program_id(0)
    start = tl.load(cu_seqlens + row)
    end = tl.load(cu_seqlens + row + 1)
    channel = tl.program_id(2) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    place = tl.arange(0, WIDTH)
    exists = channel < CHANNELS
    at = place[:, None] * CHANNELS + channel[None, :]
    inside = (place < STATE_DIM)[:, None] & exists[None, :]
    memory = load_state(state, reads, at, inside, 1, STATE_DIM * CHANNELS)  # [state_dim, channels]
    rate = tl.load(A + at, mask=inside, other=0.0)
    bias = tl.load(dt_bias + channel, mask=exists, other=0.0)
    skip = tl.load(D + channel, mask=exists, other=0.0)
    for t in range(0, end - start):
        token = start.to(tl.int64) + t
        step = _softplus(tl.load(dt + token * dt_stride + channel, mask=exists, other=0.0).to(tl.float32) + bias)
        value = tl.load(x + token * x_stride + channel, mask=exists, other=0.0).to(tl.float32)
        gated = tl.load(gate + token * gate_stride + channel, mask=exists, other=0.0).to(tl.float32)
        put = tl.load(B + token * B_stride + place, mask=place < STATE_DIM, other=0.0).to(tl.float32)
        take = tl.load(C + token * C_stride + place, mask=place < STATE_DIM, other=0.0).to(tl.float32)
        memory = memory * tl.exp(step[None, :] * rate) + put[:, None] * (step * value)[None, :]
        if state.dtype.element_ty != tl.float32:
            memory = memory.to(state.dtype.element_ty).to(tl.float32)
        sums = tl.sum(memory * take[:, None], 0) + skip * value
        sums = sums * gated / (1.0 + tl.exp(-gated))
        tl.store(out + token * CHANNELS + channel, sums.to(out.dtype.element_ty), mask=exists)
    store_state(memory, state, writes, at, inside, 1, STATE_DIM * CHANNELS)


def default_config() -> Config:
    return Config.of(BLOCK_CHANNELS=128, num_warps=1)


def candidates() -> list[Config]:
    return [Config.of(BLOCK_CHANNELS=32 * each * warps, num_warps=warps) for each in (1, 2, 4) for warps in (1, 2, 4)]


def scan_key(state_dim: int) -> str:
    return f"n{state_dim}"


def selective_scan(
    x: Tensor,
    gate: Tensor,
    dt: Tensor,
    dt_bias: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    state: Tensor,
    rows: StateRows,
) -> Tensor:
    channels, state_dim = x.shape[1], B.shape[1]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    config = pick(OPERATION, scan_key(state_dim), default_config())
    launch(
        _scan_kernel,
        (len(rows), 1, cdiv(channels, config["BLOCK_CHANNELS"])),
        *(x, gate, dt, dt_bias, A, B, C, D, state, out, *rows.tensors),
        *(part.stride(0) for part in (x, gate, dt, B, C)),
        config=config,
        CHANNELS=channels,
        STATE_DIM=state_dim,
        WIDTH=next_power_of_2(state_dim),
    )
    return out
