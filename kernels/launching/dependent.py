# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Launches that begin while the one before them ends (CUDA's programmatic dependent launch, from Hopper on).

A kernel takes part by having a parameter ``DEPENDENT``, which :func:`.repeated.prepare` sets, and by calling
:func:`follow` before it reads or writes anything. Before that call it may only prefetch weights
(:func:`fetch_weights`).

Every program of such a launch waits until the launch before it is complete and its writes are visible. That launch has
itself waited for the one before it, so all earlier launches are complete too. What overlaps is the launch overhead and
the prefetch of weights. A kernel without the parameter, and one from another library, starts when everything before it
is complete.
"""

from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..tuning import Config, Tunable, pick, untuned

OPERATION = "dependent_launches"
APART = Config.of(AT_ONCE=1)
TOGETHER = Config.of(AT_ONCE=2)
"""Whether a launch may start while another one ends: this GPU's tuning table decides."""


@triton.jit
def follow(DEPENDENT: tl.constexpr):
    """Waits for the launch before this one, and allows the next one to start."""
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def fetch_weights(weight, row, rows, begin, width, BLOCK_K: tl.constexpr, DEPENDENT: tl.constexpr):
    """Prefetches the first tile of a program into the L2 cache: ``BLOCK_K`` columns from ``begin`` on, of rows ``row``
    of ``weight`` [rows, width].

    Call it before the wait. All writes of a GPU go through the L2 cache, so what is read after the wait is right even
    if an earlier launch writes the weight.
    """
    if DEPENDENT:
        SECTOR: tl.constexpr = 256 // weight.dtype.element_ty.primitive_bitwidth  # 32 bytes, a sector of the cache
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
    """Returns what the layers of Llama-3.1-8B launch for one row apart from attention, including torch's matmuls."""
    from ..activation import gated_activation
    from ..linear import linear
    from ..norm import add_rms_norm

    make = partial(torch.randn, dtype=torch.bfloat16, device=device)
    into, out, x = make(28672, 4096), make(4096, 14336), make(1, 4096)
    residual, norm = torch.zeros_like(x), torch.ones_like(x[0])

    def layers() -> torch.Tensor:
        delta = x
        with untuned():  # else block sizes tuned for one candidate only would decide
            for _ in range(4):
                delta = linear(gated_activation(linear(add_rms_norm(delta, residual, norm, 1e-5), into), "silu"), out)
        return delta

    return layers
