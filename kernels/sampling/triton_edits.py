# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The in-place edits over ragged lists on a GPU. Row and token ids are not checked."""

import torch
import triton
import triton.language as tl

from ..launching.launch import launch
from ..tuning import Config

_PROGRAMS_A_LIST = 16


@triton.jit
def edit_listed(
    logits, width, rows, offsets, ids, strengths, counts, values, PENALISE: tl.constexpr, BLOCK: tl.constexpr
):
    """Grid [P, programs a list]. Applies penalties, or else adds ``values``."""
    i = tl.program_id(0).to(tl.int64)
    base = logits + tl.load(rows + i) * width
    end = tl.load(offsets + i + 1)
    for start in range(tl.load(offsets + i) + tl.program_id(1) * BLOCK, end, tl.num_programs(1) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        live = at < end
        token = tl.load(ids + at, mask=live, other=0)
        x = tl.load(base + token, mask=live, other=0.0)
        if PENALISE:
            count = tl.load(counts + at, mask=live, other=0).to(tl.float32)
            repetition = tl.load(strengths + i * 3)
            x = tl.where(x > 0.0, tl.div_rn(x, tl.broadcast_to(repetition, x.shape)), x * repetition)
            x = x - tl.load(strengths + i * 3 + 1) * count
            x = x - tl.load(strengths + i * 3 + 2) * tl.where(count > 0.0, 1.0, 0.0)
        else:
            x += tl.load(values + at, mask=live, other=0.0)
        tl.store(base + token, x, mask=live)


@triton.jit
def move_listed(logits, width, rows, offsets, ids, kept, RETURN: tl.constexpr, BLOCK: tl.constexpr):
    """Grid [P, programs a list]. Copies the listed logits to ``kept``, or back."""
    i = tl.program_id(0).to(tl.int64)
    base = logits + tl.load(rows + i) * width
    end = tl.load(offsets + i + 1)
    for start in range(tl.load(offsets + i) + tl.program_id(1) * BLOCK, end, tl.num_programs(1) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        live = at < end
        token = tl.load(ids + at, mask=live, other=0)
        if RETURN:
            tl.store(base + token, tl.load(kept + at, mask=live, other=0.0), mask=live)
        else:
            tl.store(kept + at, tl.load(base + token, mask=live, other=0.0), mask=live)


@triton.jit
def forbid_rows(logits, width, rows, BLOCK: tl.constexpr):
    """Grid [P, blocks of V]. Sets the rows to -inf."""
    base = logits + tl.load(rows + tl.program_id(0)) * width
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(base + ids, tl.full((BLOCK,), -float("inf"), tl.float32), mask=ids < width)


def _config(block: int = 256) -> Config:
    return Config.of(BLOCK=block, num_warps=4, fuse_multiply_add=False)


def _grid(rows: torch.Tensor, ids: torch.Tensor) -> tuple[int, int]:
    return rows.shape[0], min(triton.cdiv(ids.shape[0], 256), _PROGRAMS_A_LIST)


def penalise_(
    logits: torch.Tensor,
    strengths: torch.Tensor,
    rows: torch.Tensor,
    offsets: torch.Tensor,
    ids: torch.Tensor,
    counts: torch.Tensor,
) -> None:
    strengths, ids, counts = strengths.contiguous(), ids.contiguous(), counts.contiguous()
    launch(
        edit_listed, _grid(rows, ids), logits, logits.shape[1], rows.contiguous(), offsets.contiguous(), ids,
        strengths, counts, strengths, config=_config(), PENALISE=True,
    )  # fmt: skip


def add_bias_(
    logits: torch.Tensor, rows: torch.Tensor, offsets: torch.Tensor, ids: torch.Tensor, values: torch.Tensor
) -> None:
    ids, values = ids.contiguous(), values.contiguous()
    launch(
        edit_listed, _grid(rows, ids), logits, logits.shape[1], rows.contiguous(), offsets.contiguous(), ids,
        values, ids, values, config=_config(), PENALISE=False,
    )  # fmt: skip


def restrict_(logits: torch.Tensor, rows: torch.Tensor, offsets: torch.Tensor, ids: torch.Tensor) -> None:
    rows, offsets, ids = rows.contiguous(), offsets.contiguous(), ids.contiguous()
    kept = torch.empty(ids.shape[0], dtype=torch.float32, device=logits.device)
    lists = (logits, logits.shape[1], rows, offsets, ids, kept)
    launch(move_listed, _grid(rows, ids), *lists, config=_config(), RETURN=False)
    whole = _config(4096)
    grid = (rows.shape[0], triton.cdiv(logits.shape[1], whole["BLOCK"]))
    launch(forbid_rows, grid, logits, logits.shape[1], rows, config=whole)
    launch(move_listed, _grid(rows, ids), *lists, config=_config(), RETURN=True)
