# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Launches that begin while the one before them ends (CUDA's programmatic dependent launch, from Hopper on).

A kernel takes part by a parameter ``DEPENDENT``, for which :func:`.repeated.prepare` finds the value, and by calling
:func:`follow` before it reads or writes anything. Before that it may ask for weights (:func:`fetch_weights`). Every
program of such a launch waits until the launch before it is complete and what it wrote can be seen. That one is not
complete before it has itself waited, so all launches before it are complete too. What overlaps is how a launch is
started, and the fetching of weights. A kernel without the parameter, and one of others, starts when all before it is
complete, as ever.
"""

from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .tuning import Config, Tunable, pick, untuned

OPERATION = "dependent_launches"
APART = Config.of(AT_ONCE=1)
TOGETHER = Config.of(AT_ONCE=2)
"""One launch may be started while another one ends: what runs where this GPU's table says so."""


@triton.jit
def follow(DEPENDENT: tl.constexpr):
    """Waits for the launch before this one, and lets the one after it be started."""
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def fetch_weights(weight, row, rows, begin, width, BLOCK_K: tl.constexpr, DEPENDENT: tl.constexpr):
    """Has the GPU fetch the first tile of a program to the L2 cache: ``BLOCK_K`` columns from ``begin`` on, of rows
    ``row`` of ``weight`` [rows, width].

    For before the wait. All that a GPU writes goes through that cache, so what is read after the wait is right whoever
    writes the weight before.
    """
    if DEPENDENT:
        SECTOR: tl.constexpr = 256 // weight.dtype.element_ty.primitive_bitwidth  # 32 bytes, what the cache fetches
        column = tl.minimum(begin + tl.arange(0, BLOCK_K // SECTOR) * SECTOR, width - 1)
        address = weight + tl.minimum(row, rows - 1)[:, None] * width + column[None, :]
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
            "=r,l",
            [address.to(tl.int64)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


def launches_overlap() -> bool:
    return pick(OPERATION, "any", APART)["AT_ONCE"] > 1


def tunables() -> list[Tunable]:
    return [Tunable(OPERATION, "any", [TOGETHER], _workload)]


def _workload(device: torch.device) -> Callable[[], object]:
    """What Llama-3.1-8B's layers launch for a row beside attention, torch's products among them."""
    from .activation import gated_activation  # these late: they take part
    from .linear import linear
    from .norm import add_rms_norm

    make = partial(torch.randn, dtype=torch.bfloat16, device=device)
    into, out, x = make(28672, 4096), make(4096, 14336), make(1, 4096)
    residual, norm = torch.zeros_like(x), torch.ones_like(x[0])

    def layers() -> torch.Tensor:
        delta = x
        with untuned():  # not by block sizes that only one of those compared has
            for _ in range(4):
                delta = linear(gated_activation(linear(add_rms_norm(delta, residual, norm, 1e-5), into), "silu"), out)
        return delta

    return layers
