"""Measures how long one call takes on a device, and the device's peak rates.

On CUDA calls are captured as a graph, so that the time is the GPU's and not Python's. The L2 cache is overwritten
before each replay, and the calls of a graph take turns over copies of their operands (:func:`rotated`). On a CPU it is
wall time.
"""

import platform
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import torch

Call = Callable[[], object]

_WARMUP = 3
_HOST_CALLS = 10
_GRAPH_SECONDS = 300e-6
_GRAPH_CALLS = 30
_FLUSH_BYTES = 512 << 20
_COPY_BYTES = {"cuda": 4 << 30, "cpu": 256 << 20}
_MATMUL_SIDE = {"cuda": 8192, "cpu": 1024}


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the median, the spread of the middle half, the fastest, and the calling thread's share (all
    of it on a CPU)."""

    median: float
    low: float
    high: float
    calls: int
    fastest: float
    host: float


@dataclass(frozen=True)
class Ceilings:
    """Peak rates measured in the same run: bytes read and written by a copy, and products of random matrices."""

    bytes_per_second: float
    flops_per_second: float


def rotated(make: Callable[[], Call], device: torch.device) -> list[Call]:
    """Copies of one call for :func:`time_call`; each ``make()`` allocates its operands anew. There are enough copies to
    fill the L2 cache twice, at most as many as one graph has calls. On a CPU there is one."""
    if device.type != "cuda":
        return [make()]
    enough = 2 * torch.cuda.get_device_properties(device).L2_cache_size
    before = torch.cuda.memory_allocated(device)
    calls = [make()]
    while len(calls) < _GRAPH_CALLS and torch.cuda.memory_allocated(device) - before < enough:
        calls.append(make())
    return calls


def time_call(
    calls: Sequence[Call], device: torch.device, *, seconds: float = 0.2, most: int = 200, graphed: bool = True
) -> Timing:
    """Times a call for about ``seconds``; at least five times, at most ``most``.

    ``calls`` do the same on operands of their own, and a graph makes them in turn: all calls but the first would
    otherwise find a small weight in the L2 cache, where a step reads the weights of each layer from memory. Without
    ``graphed`` only the first is timed; it must take the device much longer than the calling thread.
    """
    call = calls[0]
    for _ in range(_WARMUP):
        call()
    if device.type != "cuda":
        measure, host = _wall(call), None
    else:
        host = _host_seconds(call, device)
        measure = _graphed(calls, device) if graphed else _between(call, device)
    times = [measure()]
    while len(times) < 5 or (sum(times) < seconds and len(times) < most):
        times.append(measure())
    return summarise(times, host)


def summarise(seconds: Iterable[float], host: float | None = None) -> Timing:
    """Summarises the times of several calls; ``host`` is given if the calling thread does not wait for them."""
    times = sorted(seconds)
    quarter, median = len(times) // 4, statistics.median(times)
    return Timing(median, times[quarter], times[-1 - quarter], len(times), times[0], median if host is None else host)


def measure_ceilings(device: torch.device) -> Ceilings:
    """Measures a copy far larger than any cache, and a bfloat16 matrix product on random data."""
    side = _MATMUL_SIDE[device.type]
    return Ceilings(_copy_rate(device), 2 * side**3 / time_product(side, device).median)


def machine(device: torch.device) -> dict[str, str]:
    """Returns the device and the versions that were measured on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    threads = {} if device.type == "cuda" else {"threads": str(torch.get_num_threads())}
    return {"device": name, "torch": str(torch.__version__), "python": platform.python_version(), **threads}


def _copy_rate(device: torch.device) -> float:
    # zeros would be quicker: memory and products take less power for them
    source = torch.randint(256, (_COPY_BYTES[device.type],), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    # within a graph the driver copies at little more than half the rate
    return 2 * source.numel() / time_call([lambda: target.copy_(source)], device, graphed=False).median


def time_product(side: int, device: torch.device) -> Timing:
    """Times the product of square bfloat16 matrices of random numbers."""
    a, b = (torch.randn(side, side, device=device).bfloat16() for _ in range(2))
    out = torch.empty_like(a)
    return time_call([lambda: torch.mm(a, b, out=out)], device)


def _wall(call: Call) -> Callable[[], float]:
    def measure() -> float:
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    return measure


def _host_seconds(call: Call, device: torch.device) -> float:
    """Returns the least of some calls' times; the device is idle before each, so that none waits for it."""
    taken = []
    for _ in range(_HOST_CALLS):
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    torch.cuda.synchronize(device)
    return min(taken)


def _graphed(calls: Sequence[Call], device: torch.device) -> Callable[[], float]:
    """Measures the seconds of a call within a graph of as many calls as take :data:`_GRAPH_SECONDS`, so that the
    graph's launch does not dominate a short one."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for call in calls:  # what a call prepares once is not for the graph
            call()
    torch.cuda.current_stream(device).wait_stream(stream)

    def replays(count: int) -> Callable[[], float]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in islice(cycle(calls), count):
                call()
        return _between(graph.replay, device, count)

    one = replays(1)
    count = int(_GRAPH_SECONDS / min(one(), one()))
    return replays(min(count, _GRAPH_CALLS)) if count > 1 else one


def _between(go: Call, device: torch.device, calls: int = 1) -> Callable[[], float]:
    """Measures the seconds of each of ``calls`` that ``go`` queues, by the device's clock, with its data flushed from
    the L2 cache."""
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device=device)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def measure() -> float:
        flush.zero_()
        begin.record()
        go()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / calls

    return measure
