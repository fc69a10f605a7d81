"""Chooses among the kernels by the number of rows, and launches them."""

import torch
from torch import Tensor

from ..launching.launch import interpreted, launch
from ..quantize.fp8 import capability
from ..tuning import Config, pick
from .planes import BLOCK, Planes
from .triton_general import add_parts, linear_general, make_floats
from .triton_skinny import linear_skinny

SKINNY, GENERAL, LIMITS = "linear_planes_skinny", "linear_planes_general", "linear_planes_limits"
SCRATCH_BYTES = 64 << 20
"""The most scratch memory for dequantising a large weight piece by piece."""
_PROGRAMS = 4 * 132
"""Enough programs to fill a large GPU."""


def skinny_key(planes: Planes, tokens: int, dtype: torch.dtype) -> str:
    return _key(planes, _tile_of(tokens, 8, 16), dtype)


def general_key(planes: Planes, tokens: int, dtype: torch.dtype) -> str:
    return _key(planes, _tile_of(tokens, 16, 256), dtype)


def _key(planes: Planes, tokens: int, dtype: torch.dtype) -> str:
    """Returns the key, which is the same for both 16-bit dtypes: they are multiplied alike."""
    wide = " float32" if dtype == torch.float32 else ""
    return f"{planes.label} n{planes.shape[0]} k{planes.shape[1]} t{tokens}{wide}"


def offset_apart(planes: Planes) -> bool:
    """Whether the skinny kernel can multiply the codes' offset apart from the codes, which the tuner tries."""
    return planes.bits == 4 and planes.zeros is None


def skinny_default(planes: Planes, tokens: int, dtype: torch.dtype) -> Config:
    tile = _tile_of(tokens, 8, 16)
    steps = {"STEPS": 2} if offset_apart(planes) else {}
    if dtype == torch.float32:  # no tensor cores
        return Config.of(SLICES=4, ROWS=16, TOKENS=tile, num_warps=4, num_stages=2, **steps)
    slices = 4
    if planes.shape[0] // 16 < _PROGRAMS and planes.blocks >= 16 and planes.bits != 6 and not _small_shared():
        slices = 8
    stages = 4 if slices == 8 and tile == 8 else 3  # so that all programs fit on the GPU at once
    return Config.of(SLICES=slices, ROWS=16, TOKENS=tile, num_warps=slices, num_stages=stages, **steps)


def general_default(planes: Planes, tokens: int, dtype: torch.dtype) -> Config:
    if dtype == torch.float32:
        return Config.of(ROWS=64, TOKENS=16, PARTS=1, num_warps=4, num_stages=2)
    small = _small_shared()
    tile = _tile_of(tokens, 16, 64 if small or capability() < 90 or planes.bits == 6 else 128)
    # As many rows as threads. With fewer, the compiler sends scales to every thread that needs them, and the weight's
    # floats then pass through shared memory on their way to the tensor cores.
    rows = 256 if tile > 64 else 128
    programs = -(-planes.shape[0] // rows) * -(-_tile_of(tokens, 16, 256) // tile)
    parts = 1
    while parts < 8 and programs * parts < 264 and planes.blocks // (2 * parts) >= 4:
        parts *= 2
    stages = 2 if small or (tile > 64 and planes.bits == 8) else 3
    return Config.of(ROWS=rows, TOKENS=tile, PARTS=parts, num_warps=rows // 32, num_stages=stages)


def _small_shared() -> bool:
    """Whether the GPU has about 100 KiB of shared memory per program, as consumer and workstation ones have."""
    return capability() not in (0, 80, 90, 100, 103)


def limits(planes: Planes) -> Config:
    """Returns the limits: up to SKINNY rows of x the skinny kernel runs, from DENSE rows on the weight is dequantised
    first."""
    # On datacentre Blackwell Triton 3.6 to 3.8 sum wrongly if multiplications of one step share an accumulator, as in
    # the general kernel (triton-lang/triton#10821).
    return pick(LIMITS, planes.label, Config.of(SKINNY=16, DENSE=17 if capability() // 10 in (10, 11) else 512))


def linear_planes(x: Tensor, planes: Planes, bias: Tensor | None) -> Tensor:
    """Multiplies x [T, K] float, rows contiguous, by the weight [N, K] transposed: [T, N] of the dtype of ``x``.

    The columns of ``x`` are in the order of the planes'.
    """
    tokens, bounds = x.shape[0], limits(planes)
    if tokens <= min(bounds["SKINNY"], 16):
        return skinny(x, planes, bias)
    if tokens < bounds["DENSE"]:
        return general(x, planes, bias)
    return dense(x, planes, bias)


def skinny(x: Tensor, planes: Planes, bias: Tensor | None) -> Tensor:
    """Multiplies at most 16 rows."""
    tokens, (rows, columns) = x.shape[0], planes.shape
    config = pick(SKINNY, skinny_key(planes, tokens, x.dtype), skinny_default(planes, tokens, x.dtype))
    if config["TOKENS"] < tokens:
        raise ValueError(f"{SKINNY}: TOKENS must hold all {tokens} rows, not {config['TOKENS']}")
    out = x.new_empty(tokens, rows)
    launch(
        linear_skinny,
        (-(-rows // config["ROWS"]) if tokens else 0,),
        x,
        *_tensors(planes),
        out if bias is None else bias,
        out,
        tokens,
        rows,
        columns,
        planes.blocks,
        x.stride(0),
        config=config,
        **_constants(planes, x.dtype),
        EVEN=planes.blocks % config["SLICES"] == 0,
        WHOLE=columns % BLOCK == 0,
        BIAS=bias is not None,
        PRECISION=_precision(x.dtype),
    )
    return out


def general(x: Tensor, planes: Planes, bias: Tensor | None) -> Tensor:
    """Multiplies any number of rows; a second kernel sums several parts of K in order."""
    tokens, (rows, columns) = x.shape[0], planes.shape
    config = pick(GENERAL, general_key(planes, tokens, x.dtype), general_default(planes, tokens, x.dtype))
    blocks_a_part = -(-planes.blocks // config["PARTS"])
    parts = -(-planes.blocks // blocks_a_part)  # fewer if the last one would have no blocks
    out = x.new_empty(tokens, rows)
    target = out if parts == 1 else x.new_empty((parts, tokens, rows), dtype=torch.float32)
    launch(
        linear_general,
        (-(-tokens // config["TOKENS"]), -(-rows // config["ROWS"]), parts),
        x,
        *_tensors(planes),
        out if bias is None else bias,
        target,
        tokens,
        rows,
        columns,
        planes.blocks,
        blocks_a_part,
        x.stride(0),
        config=config,
        **_constants(planes, x.dtype),
        WHOLE=columns % BLOCK == 0,
        BIAS=bias is not None,
        PRECISION=_precision(x.dtype),
        HOPPER=capability() == 90,
        TOGETHER=capability() in (0, 90) and x.dtype != torch.float32 and planes.mins is None,  # 0: interpreted
        PARTS=parts,
    )
    if parts > 1:
        block = Config.of(ROWS=1024, num_warps=4, num_stages=1)
        launch(
            add_parts,
            (tokens, -(-rows // block["ROWS"])),
            target,
            out if bias is None else bias,
            out,
            tokens,
            rows,
            config=block,
            PARTS=parts,
            BIAS=bias is not None,
        )
    return out


def dense(x: Tensor, planes: Planes, bias: Tensor | None) -> Tensor:
    """Dequantises the weight to the dtype of ``x``, some rows at a time, and multiplies with torch."""
    tokens, (rows, columns) = x.shape[0], planes.shape
    # in whole 128s: torch's product takes three times as long where a piece of its result is not aligned
    some = min(rows, max(1, SCRATCH_BYTES // (columns * x.element_size() * 128)) * 128)
    out, scratch = x.new_empty(tokens, rows), x.new_empty(some, columns)
    for first in range(0, rows, some):
        last = min(first + some, rows)
        values = scratch[: last - first]
        floats(planes, values, first, last)
        torch.mm(x, values.T, out=out[:, first:last])
    return out if bias is None else out.add_(bias)


def floats(planes: Planes, out: Tensor, first: int, last: int) -> None:
    """Writes rows first ≤ n < last of the dequantised weight to ``out`` [last - first, K], contiguous."""
    config = Config.of(ROWS=64, num_warps=4, num_stages=1)
    launch(
        make_floats,
        (planes.blocks, -(-(last - first) // config["ROWS"])),
        *_tensors(planes),
        out,
        first,
        last,
        *planes.shape,
        config=config,
        **_constants(planes, out.dtype),
    )


def _tensors(planes: Planes) -> tuple[Tensor, ...]:
    """Returns the planes in the kernels' order; one that a format does not have is never read."""
    sub_scales, sub_mins = (
        None if plane is None else plane.view(torch.int32) for plane in (planes.sub_scales, planes.sub_mins)
    )
    optional = (planes.high, planes.scales, sub_scales, planes.mins, sub_mins, planes.zeros)
    return (planes.codes, *(planes.codes if plane is None else plane for plane in optional))


def _constants(planes: Planes, dtype: torch.dtype) -> dict[str, object]:
    return {
        "BITS": planes.bits,
        "GROUP": planes.group,
        "OFFSET": planes.offset,
        "SUB": planes.sub_scales is not None,
        "MINS": planes.mins is not None,
        "ZEROS": planes.zeros is not None,
        "FAST": dtype != torch.float32 and not interpreted(),  # the interpreter cannot run inline assembly
    }


def _precision(dtype: torch.dtype) -> str:
    return "ieee" if dtype == torch.float32 else "tf32"


def _tile_of(tokens: int, least: int, most: int) -> int:
    """Returns the smallest power of two that holds ``tokens``, within bounds."""
    return min(most, max(least, 1 << max(0, tokens - 1).bit_length()))
