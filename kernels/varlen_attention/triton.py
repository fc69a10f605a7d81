# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Attention of many queries of a sequence to its keys, which are contiguous."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..attention.prefill_config import FAR, LOG2E, attention_key, default_config, few_rows, pack_heads
from ..attention.prefill_inner import attend, find_tile, key_range, load_rows, start_softmax, store_mean, visible_keys
from ..launching.launch import launch
from ..tuning import pick
from .arguments import VarlenArgs

OPERATION = "varlen_attention"


@triton.jit(
    do_not_specialize=["sequences", "tiles", "left", "right"],
    do_not_specialize_on_alignment=["q_start", "k_start"],
)
def _varlen_kernel(
    q,
    k,
    v,
    out,
    q_start,
    k_start,
    sinks,
    sequences,
    tiles,
    q_stride,
    k_stride,
    v_stride,
    scale,
    softcap,
    left,
    right,
    GROUP: tl.constexpr,
    PACK: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """A tile of BLOCK_M // PACK queries by PACK heads of one kv head; see :mod:`..attention.prefill_inner`."""
    BLOCK_Q: tl.constexpr = BLOCK_M // PACK
    PACKS: tl.constexpr = (GROUP + PACK - 1) // PACK
    sequence, tile = find_tile(q_start, sequences, tiles - 1 - tl.program_id(0), BLOCK_Q)
    begins = tl.load(q_start + sequence)
    queries = tl.load(q_start + sequence + 1) - begins
    if tile * BLOCK_Q >= queries:
        return
    first_key = tl.load(k_start + sequence)
    keys = tl.load(k_start + sequence + 1) - first_key
    kv_head = tl.program_id(1) // PACKS

    row = tl.arange(0, BLOCK_M)
    token = tile * BLOCK_Q + row // PACK
    member = tl.program_id(1) % PACKS * PACK + row % PACK
    fits = (row < BLOCK_Q * PACK) & (token < queries) & (member < GROUP)
    head = kv_head * GROUP + tl.minimum(member, GROUP - 1)
    dim = tl.arange(0, WIDTH)
    rows = (begins + token).to(tl.int64)
    stored = fits[:, None] & (dim < DIM)[None, :]
    q_tile = tl.load(q + (rows * q_stride + head * DIM)[:, None] + dim[None, :], mask=stored, other=0.0)
    k += first_key.to(tl.int64) * k_stride + kv_head * DIM
    v += first_key.to(tl.int64) * v_stride + kv_head * DIM

    first = keys - queries + tile * BLOCK_Q
    last = tl.minimum(first + BLOCK_Q, keys) - 1
    begin, end, whole, rest = key_range(first, last, keys, left, right, LEFT, RIGHT, BLOCK_N)
    position = keys - queries + token
    top, total = start_softmax(sinks, head, BLOCK_M)
    sums = tl.zeros([BLOCK_M, WIDTH], tl.float32)
    lane = tl.arange(0, BLOCK_N)
    for part in tl.static_range(3):
        if part == 0:
            start_at = begin // BLOCK_N * BLOCK_N
            stop_at = tl.minimum(whole, end)
        elif part == 1:
            start_at = whole
            stop_at = rest
        else:
            start_at = rest
            stop_at = end
        if LEFT or part > 0:
            for start in tl.range(start_at, stop_at, BLOCK_N):
                start = tl.multiple_of(start, BLOCK_N)
                key = start + lane
                inside = (key >= begin) & (key < end)
                k_at, v_at = k + start.to(tl.int64) * k_stride, v + start.to(tl.int64) * v_stride
                k_tile = load_rows(k_at, lane * k_stride, dim, inside, DIM, WIDTH, part != 1)
                v_tile = load_rows(v_at, lane * v_stride, dim, inside, DIM, WIDTH, part != 1)
                visible = visible_keys(position, key, end, left, right, LEFT, RIGHT)
                # fmt: off
                sums, top, total = attend(q_tile, tl.trans(k_tile), v_tile, sums, top, total, visible,
                                          None, None, key, position, scale, softcap, part != 1, SOFTCAP, PRECISION)
                # fmt: on
    out_rows = out + (rows * (tl.num_programs(1) // PACKS * GROUP * DIM) + head * DIM)[:, None]
    store_mean(out_rows + dim[None, :], sums, total, 1.0, stored)


def varlen_attention(args: VarlenArgs) -> Tensor:
    q, k, v, q_start, k_start, max_q, scale, left, right, softcap, sinks = args
    tokens, heads, dim = q.shape
    kv_heads, sequences = k.shape[1], q_start.shape[0] - 1
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not tokens or not sequences:
        return out
    group = heads // kv_heads
    # short sequences fill no large tile, however many there are
    few = few_rows(tokens * heads) or max_q * group <= 64
    windowed = left >= 0 or right > 0
    key = attention_key(dim, group, q.dtype, q.dtype, few=few, windowed=windowed)
    config = pick(OPERATION, key, default_config(dim, q.dtype, q.dtype, few=few, windowed=windowed))
    pack = pack_heads(group, config["BLOCK_M"])
    tiles = tokens // (config["BLOCK_M"] // pack) + sequences
    launch(
        _varlen_kernel,
        (tiles, kv_heads * triton.cdiv(group, pack)),
        q,
        k,
        v,
        out,
        q_start,
        k_start,
        sinks,
        sequences,
        tiles,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        scale if softcap > 0 else scale * LOG2E,
        softcap,
        min(left, FAR),
        min(right, FAR),
        config=config,
        GROUP=group,
        PACK=pack,
        DIM=dim,
        WIDTH=max(16, triton.next_power_of_2(dim)),
        LEFT=left >= 0,
        RIGHT=right >= 0,
        SOFTCAP=softcap > 0,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
    )
    return out
