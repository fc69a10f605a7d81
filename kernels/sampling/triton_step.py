"""Launches the passes of a draw: at most four kernels, whose grids depend on R and V only."""

from dataclasses import dataclass

import torch

from ..launching.launch import cdiv, launch, next_power_of_2
from ..tuning import Config, pick
from .slot_params import SlotParams
from .tables import PARAMS, SamplerTables, params_of
from .triton_filter import bracket_limits, gather_members
from .triton_finish import choose_tokens
from .triton_rows import write_rows
from .triton_scan import scan_tiles

SCAN, BRACKET, FINISH = "sampling_scan", "sampling_bracket", "sampling_finish"
"""The operations' names in the tuning tables. GROUP divides BLOCK, and PART divides BLOCK and CHUNK."""

_FEW_ROWS = 16


@dataclass(frozen=True)
class SamplerScratch:
    """Intermediate results of a draw that later kernels read."""

    tile_max: torch.Tensor
    """[R, tiles] float32"""
    work: torch.Tensor
    """[R, V] float32: the logits of edited rows, if the logits themselves are not float32."""
    limits: torch.Tensor
    """[R, 2] int32: the order key and the id at which a row's filters end."""
    block: int
    """Logits per tile."""
    brackets: torch.Tensor
    """[R, 2] float32: the guessed end of a row with top-k or top-p; written if V is beyond ROOM."""
    counts: torch.Tensor
    """[R] int32: the number of tokens in the bracket."""


def rows_key(rows: int) -> str:
    return "few" if rows <= _FEW_ROWS else "many"


def scan_config(rows: int) -> Config:
    small = rows <= _FEW_ROWS
    default = Config.of(BLOCK=1024 if small else 2048, GROUP=128, num_warps=4 if small else 8, fuse_multiply_add=False)
    return pick(SCAN, rows_key(rows), default)


def bracket_config(rows: int) -> Config:
    default = Config.of(SAMPLES=4096, ROOM=16384, num_warps=16, fuse_multiply_add=False)
    return pick(BRACKET, rows_key(rows), default)


def finish_config(rows: int) -> Config:
    default = Config.of(CHUNK=1024, PART=1024, num_warps=8, fuse_multiply_add=False)
    return pick(FINISH, rows_key(rows), default)


def draw_rows(
    logits: torch.Tensor,
    slots: torch.Tensor,
    slot_params: torch.Tensor,
    tables: SamplerTables | None,
    out: torch.Tensor,
    *,
    drafts: torch.Tensor | None = None,
    filters: bool = True,
    accept: bool = False,
    limits: bool = False,
) -> SamplerScratch:
    """Draws ``out`` [R] from logits [R, V], in which each of ``slots`` [S] has R / S consecutive rows.

    Without ``tables`` nothing is edited, and ``out`` is -1 if nothing can be drawn.
    """
    rows, vocabulary = logits.shape
    span = 1 if drafts is None else drafts.shape[1] + 1
    scan, bracket, finish = scan_config(rows), bracket_config(rows), finish_config(rows)
    tiles = cdiv(vocabulary, scan["BLOCK"])
    blocks = tiles * (scan["BLOCK"] // scan["GROUP"])
    lists = filters and vocabulary > bracket["ROOM"]
    edits = tables is not None
    has_work = edits and logits.dtype != torch.float32

    def room(*shape: int, dtype: torch.dtype, wanted: bool = True) -> torch.Tensor:
        return torch.empty(shape if wanted else 1, dtype=dtype, device=logits.device)

    tile_max = room(rows, tiles, dtype=torch.float32)
    tile_best = room(rows, tiles, dtype=torch.int32)
    work = room(rows, vocabulary, dtype=torch.float32, wanted=has_work)
    block_max = room(rows, blocks, dtype=torch.float32, wanted=lists)
    brackets = room(rows, 2, dtype=torch.float32, wanted=lists)
    counts = room(rows, dtype=torch.int32, wanted=lists)
    masses = room(rows, tiles, 2, dtype=torch.int64, wanted=lists)
    member_ids = room(rows, bracket["ROOM"], dtype=torch.int32, wanted=lists)
    member_logits = room(rows, bracket["ROOM"], dtype=torch.float32, wanted=lists)
    ends = room(rows, 2, dtype=torch.int32, wanted=limits)
    seen, mask, early, bias_ids, bias_values = (slot_params,) * 5 if tables is None else tables.tensors[1:]
    past = slot_params if drafts is None else drafts
    shared = {"SPAN": span, "EDITS": edits, "WORK": has_work}
    has_seen = edits and seen.shape[1] > 0
    row = (logits, logits.stride(0), work, slots)

    launch(
        scan_tiles, (rows, tiles), *row, past, slot_params, seen, mask, early, bias_ids, bias_values,
        tile_max, tile_best, block_max, vocabulary, config=scan, SEEN=has_seen, FILTERS=lists, **shared,
    )  # fmt: skip
    tile_count = next_power_of_2(tiles)
    if lists:
        sizes = {"TILES": tile_count, "BLOCK": scan["BLOCK"], "GROUP": scan["GROUP"]}
        launch(
            bracket_limits, (rows,), *row, slot_params, tile_max, block_max, brackets, counts, vocabulary, tiles,
            config=without(bracket, "ROOM"), BLOCKS=next_power_of_2(blocks), **sizes, **shared,
        )  # fmt: skip
        launch(
            gather_members, (rows, tiles), *row, slot_params, tile_max, block_max, brackets, counts, masses, member_ids,
            member_logits, vocabulary, tiles, config=scan, TILES=tile_count, ROOM=bracket["ROOM"], **shared,
        )  # fmt: skip
    launch(
        choose_tokens, (rows,), *row, slot_params, seen, mask, tile_max, tile_best, counts, masses,
        member_ids, member_logits, ends, out, vocabulary, tiles, config=finish, SEEN=has_seen, FILTERS=filters,
        LISTS=lists, LIMITS=limits, ACCEPT=accept, TILES=tile_count, BLOCK=scan["BLOCK"], ROOM=bracket["ROOM"],
        **shared,
    )  # fmt: skip
    return SamplerScratch(tile_max, work, ends, scan["BLOCK"], brackets, counts)


def without(config: Config, *names: str) -> Config:
    """Returns the config without some sizes, for a kernel that does not take them."""
    kept = tuple((name, size) for name, size in config.blocks if name not in names)
    return Config(kept, config.num_warps, config.num_stages, config.fuse_multiply_add)


def step_(logits: torch.Tensor, slots: torch.Tensor, tables: SamplerTables, out: torch.Tensor) -> None:
    draw_rows(logits, slots, tables.params, tables, out, accept=True)


def draw(logits: torch.Tensor, slots: torch.Tensor, indices: torch.Tensor, slot_params: SlotParams) -> torch.Tensor:
    rows = torch.arange(logits.shape[0], device=logits.device)
    out = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    draw_rows(logits, rows, params_of(slot_params, slots, indices), None, out)
    return out


def argmax(logits: torch.Tensor) -> torch.Tensor:
    rows = torch.arange(logits.shape[0], device=logits.device)
    out = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    greedy = torch.zeros((logits.shape[0], PARAMS), dtype=torch.int64, device=logits.device)
    draw_rows(logits, rows, greedy, None, out, filters=False)
    return out


def write_params_(tables: SamplerTables, rows: torch.Tensor, packed: torch.Tensor) -> None:
    config = Config.of(num_warps=1)
    launch(write_rows, rows.shape, rows, packed, tables.params, packed.stride(0), config=config, WIDTH=PARAMS)
