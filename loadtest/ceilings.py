"""What a CPU can do at most with the threads that torch was given, measured in the same run as what it does."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

_READ_BYTES = 512 << 20
_SIDES = (512, 1024, 2048)
_PASSES = 7


@dataclass(frozen=True)
class CpuCeilings:
    """The best of several passes each: neighbours on the machine can only take away."""

    read_bytes_per_second: float
    """One stream of float32 far larger than any cache, read by the fastest of several reductions."""
    product_flops_per_second: dict[int, float]
    """bfloat16 products of random square matrices, by their side."""

    @property
    def flops_per_second(self) -> float:
        return max(self.product_flops_per_second.values())


def measure_cpu_ceilings(read_bytes: int = _READ_BYTES, sides: tuple[int, ...] = _SIDES) -> CpuCeilings:
    """Takes some seconds."""
    return CpuCeilings(_read_rate(read_bytes), {side: _product_rate(side) for side in sides})


def _read_rate(size: int) -> float:
    data = torch.ones(size // 4)
    reductions: tuple[Callable[[], object], ...] = (
        lambda: torch.linalg.vector_norm(data),
        data.sum,
        data.amax,
        lambda: torch.mv(data.view(-1, min(4096, len(data))), data[: min(4096, len(data))]),
    )
    return size / min(_fastest(reduction) for reduction in reductions)


def _product_rate(side: int) -> float:
    a, b = (torch.randn(side, side).bfloat16() for _ in range(2))
    out = torch.empty_like(a)
    return 2 * side**3 / _fastest(lambda: torch.mm(a, b, out=out))


def _fastest(call: Callable[[], object]) -> float:
    times = []
    for _ in range(1 + _PASSES):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times[1:])
