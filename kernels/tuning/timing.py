"""How long one call takes on a device, and what the device can do at most.

On CUDA the call is captured as a graph, so that the time is the GPU's and not Python's, and the L2 cache is
overwritten before each replay. On a CPU it is wall time.
"""

import platform
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

_WARMUP = 3
_FLUSH_BYTES = 512 << 20
_COPY_BYTES = {"cuda": 4 << 30, "cpu": 256 << 20}
_MATMUL_SIDE = {"cuda": 8192, "cpu": 1024}


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the median, the spread of the middle half, and the fastest."""

    median: float
    low: float
    high: float
    calls: int
    fastest: float


@dataclass(frozen=True)
class Ceilings:
    """What was measured in the same run: bytes read and written by a copy, and products of random matrices."""

    bytes_per_second: float
    flops_per_second: float


def time_call(call: Callable[[], object], device: torch.device, *, seconds: float = 0.2, most: int = 200) -> Timing:
    """Times ``call`` repeatedly for about ``seconds``; at least five times, at most ``most``."""
    for _ in range(_WARMUP):
        call()
    measure = _graphed(call, device) if device.type == "cuda" else _wall(call)
    times = [measure()]
    while len(times) < 5 or (sum(times) < seconds and len(times) < most):
        times.append(measure())
    return summarise(times)


def summarise(seconds: Iterable[float]) -> Timing:
    """What several calls took."""
    times = sorted(seconds)
    quarter = len(times) // 4
    return Timing(statistics.median(times), times[quarter], times[-1 - quarter], len(times), times[0])


def measure_ceilings(device: torch.device) -> Ceilings:
    """A copy far larger than any cache, and a bfloat16 matrix product on random data."""
    side = _MATMUL_SIDE[device.type]
    return Ceilings(_copy_rate(device), 2 * side**3 / time_product(side, device).median)


def machine(device: torch.device) -> dict[str, str]:
    """What was measured on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    threads = {} if device.type == "cuda" else {"threads": str(torch.get_num_threads())}
    return {"device": name, "torch": str(torch.__version__), "python": platform.python_version(), **threads}


def _copy_rate(device: torch.device) -> float:
    source = torch.zeros(_COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / time_call(lambda: target.copy_(source), device).median


def time_product(side: int, device: torch.device) -> Timing:
    """Of square bfloat16 matrices of random numbers."""
    a, b = (torch.randn(side, side, device=device).bfloat16() for _ in range(2))
    out = torch.empty_like(a)
    return time_call(lambda: torch.mm(a, b, out=out), device)


def _wall(call: Callable[[], object]) -> Callable[[], float]:
    def measure() -> float:
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    return measure


def _graphed(call: Callable[[], object], device: torch.device) -> Callable[[], float]:
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device=device)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def measure() -> float:
        flush.zero_()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    return measure
