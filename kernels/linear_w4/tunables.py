"""The packed weights that the tuner tries."""

from collections.abc import Callable, Iterator, Sequence

import torch

from ..tuning import Config, Tunable
from .planes import Planes
from .triton import GENERAL, SKINNY, general, general_key, offset_apart, skinny, skinny_key
from .weight import W4Weight

# Llama-3.1-8B, then Qwen3-32B: q, k and v; the output; gate and up; down.
SHAPES = (
    (6144, 4096),
    (4096, 4096),
    (28672, 4096),
    (4096, 14336),
    (10240, 5120),
    (5120, 8192),
    (51200, 5120),
    (5120, 25600),
)
"""(N, K)"""
SKINNY_TOKENS = (1, 16)
GENERAL_TOKENS = (32, 64, 128, 256)


def tunables() -> list[Tunable]:
    """Returns the tunables of four-bit weights in groups of 128, symmetric and with zeros."""
    return [
        tunable for shape in SHAPES for zeros in (False, True) for tunable in planes_tunables(shape, _random(zeros))
    ]


def planes_tunables(
    shape: tuple[int, int], make: Callable[[tuple[int, int], torch.device], Planes]
) -> Iterator[Tunable]:
    """Yields the tunables of both kernels on a weight of ``shape`` (N, K) that ``make`` makes on a device."""
    label = make(shape, torch.device("meta"))
    for tokens in SKINNY_TOKENS:
        yield Tunable(
            SKINNY,
            skinny_key(label, tokens, torch.bfloat16),
            skinny_candidates(label, tokens),
            _workload(skinny, shape, tokens, make),
        )
    for tokens in GENERAL_TOKENS:
        key = general_key(label, tokens, torch.bfloat16)
        yield Tunable(GENERAL, key, general_candidates(tokens), _workload(general, shape, tokens, make))


def skinny_candidates(planes: Planes, tokens: int) -> Sequence[Config]:
    tile = 8 if tokens <= 8 else 16
    return [
        Config.of(SLICES=slices, ROWS=rows, TOKENS=tile, num_warps=slices, num_stages=stages, **steps)
        for steps in ([{"STEPS": 2}, {"STEPS": 1}] if offset_apart(planes) else [{}])
        for slices in (4, 8)
        for rows in (16, 32)
        for stages in (2, 3, 4, 5)
        if slices * (rows * 64 + tile * 256) * (stages - 1) <= 160 << 10
    ]


def general_candidates(tokens: int) -> Sequence[Config]:
    tiles = sorted({min(tokens, 64), min(tokens, 128)})
    return [
        Config.of(ROWS=rows, TOKENS=tile, PARTS=parts, num_warps=rows // 32, num_stages=stages)
        for tile in tiles
        for rows in (128, 256)
        for parts in (1, 2, 4, 8)
        for stages in (2, 3, 4)
    ]


def _workload(
    run: Callable[[torch.Tensor, Planes, None], torch.Tensor],
    shape: tuple[int, int],
    tokens: int,
    make: Callable[[tuple[int, int], torch.device], Planes],
) -> Callable[[torch.device], Callable[[], object]]:
    def workload(device: torch.device) -> Callable[[], object]:
        planes = make(shape, device)
        x = torch.randn(tokens, shape[1], dtype=torch.bfloat16, device=device)
        return lambda: run(x, planes, None)

    return workload


def _random(zeros: bool) -> Callable[[tuple[int, int], torch.device], Planes]:
    def make(shape: tuple[int, int], device: torch.device) -> Planes:
        rows, columns = shape
        groups = columns // 128
        return W4Weight(
            codes=torch.randint(-(1 << 15), 1 << 15, (groups, rows, 32), device=device).to(torch.int16),
            scales=torch.full((groups, rows), 0.01, dtype=torch.bfloat16, device=device),
            zeros=torch.full((groups, rows), 7, dtype=torch.uint8, device=device) if zeros else None,
            perm=None,
            group=128,
            shape=shape,
        ).planes

    return make
