# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The causal convolution in tiles of a row's tokens by channels. Only a row's first tile reads and writes its state."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..attention.prefill_inner import find_tile
from ..launching.launch import cdiv, launch, next_power_of_2
from ..state_rows import StateRows
from ..tuning import Config, pick

OPERATION = "causal_conv"


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["cu_seqlens"])
def _conv_kernel(
    x,
    weight,
    bias,
    state,
    out,
    cu_seqlens,
    reads,
    writes,
    rows,
    x_stride,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    PAST: tl.constexpr,
    SILU: tl.constexpr,
    SHORT: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    """``SHORT``: each row is one tile. PAST is WIDTH - 1, rounded up."""
    KEPT: tl.constexpr = WIDTH - 1
    if SHORT:
        row = tl.program_id(0)
        tile = 0
    else:
        row, tile = find_tile(cu_seqlens, rows, tl.program_id(0), BLOCK_TOKENS)
    start = tl.load(cu_seqlens + row)
    length = tl.load(cu_seqlens + row + 1) - start
    if tile > 0 and tile * BLOCK_TOKENS >= length:
        return
    read = tl.load(reads + row)
    channel = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    exists = channel < CHANNELS
    token = tile * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    x += start.to(tl.int64) * x_stride
    before = state + (read * CHANNELS + channel) * KEPT  # [channels], int64
    sums = tl.zeros([BLOCK_TOKENS, BLOCK_CHANNELS], tl.float32)
    if bias is not None:
        sums += tl.load(bias + channel, mask=exists, other=0.0).to(tl.float32)[None, :]
    for j in tl.static_range(WIDTH):
        at = token - KEPT + j
        inside = (at >= 0) & (at < length)
        value = tl.load(
            x + at.to(tl.int64)[:, None] * x_stride + channel[None, :],
            mask=inside[:, None] & exists[None, :],
            other=0.0,
        ).to(tl.float32)
        if j < KEPT:
            kept = ((at < 0) & (at >= -KEPT))[:, None] & exists[None, :] & (read >= 0)
            value += tl.load(before[None, :] + (at + KEPT)[:, None], mask=kept, other=0.0).to(tl.float32)
            if state.dtype.element_ty != x.dtype.element_ty:
                value = value.to(state.dtype.element_ty).to(tl.float32)
        factor = tl.load(weight + channel * WIDTH + j, mask=exists, other=0.0).to(tl.float32)
        sums += value * factor[None, :]
    if SILU:
        sums = sums / (1.0 + tl.exp(-sums))
    to = out + (start + token).to(tl.int64)[:, None] * CHANNELS + channel[None, :]
    tl.store(to, sums.to(out.dtype.element_ty), mask=(token < length)[:, None] & exists[None, :])
    if tile == 0:
        write = tl.load(writes + row)
        place = tl.arange(0, PAST)
        latest = length - KEPT + place
        fits = (place < KEPT)[None, :] & exists[:, None]
        last = tl.load(
            x + latest.to(tl.int64)[None, :] * x_stride + channel[:, None],
            mask=fits & (latest >= 0)[None, :],
            other=0.0,
        ).to(tl.float32)
        # the rest of the old state, if the row is shorter than the state
        older = tl.load(
            before[:, None] + (latest + KEPT)[None, :], mask=fits & (latest < 0)[None, :] & (read >= 0), other=0.0
        ).to(tl.float32)
        last = tl.where((latest >= 0)[None, :], last, older)
        tl.debug_barrier()  # other threads may have read the same slot
        tl.store(
            state + ((write * CHANNELS + channel) * KEPT)[:, None] + place[None, :],
            last.to(state.dtype.element_ty),
            mask=fits & (write >= 0),
        )


def default_config(short: bool) -> Config:
    if short:
        return Config.of(BLOCK_TOKENS=1, BLOCK_CHANNELS=256, num_warps=4)
    return Config.of(BLOCK_TOKENS=32, BLOCK_CHANNELS=64, num_warps=4)


def candidates(short: bool) -> list[Config]:
    if short:
        return [
            Config.of(BLOCK_TOKENS=1, BLOCK_CHANNELS=size, num_warps=warps)
            for size in (128, 256, 512)
            for warps in (2, 4)
        ]
    return [
        Config.of(BLOCK_TOKENS=tokens, BLOCK_CHANNELS=channels, num_warps=warps)
        for tokens in (16, 32, 64)
        for channels in (64, 128)
        for warps in (4, 8)
    ]


def conv_key(width: int, short: bool) -> str:
    return f"w{width}-{'decode' if short else 'prefill'}"


def causal_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, rows: StateRows, activation: str
) -> Tensor:
    tokens, channels = x.shape
    width = weight.shape[1]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    short = rows.longest <= 1
    config = pick(OPERATION, conv_key(width, short), default_config(short))
    launch(
        _conv_kernel,
        (
            len(rows) if short else tokens // config["BLOCK_TOKENS"] + len(rows),
            cdiv(channels, config["BLOCK_CHANNELS"]),
        ),
        *(x, weight, bias, state, out, *rows.tensors, len(rows), x.stride(0)),
        config=config,
        CHANNELS=channels,
        WIDTH=width,
        PAST=next_power_of_2(width - 1),
        SILU=activation == "silu",
        SHORT=short,
    )
    return out
