"""A device in host memory that is late on purpose: it keeps the promises of :mod:`stentor.engine.worker.device.device`
and no more, so that a runner which relies on more is caught.

Work runs when it is queued, but nobody is told before they wait. What a download brings is there once a mark
behind it has been waited for, and garbage until then. What an upload takes is checked at that moment: if
the host has changed it, the copy might have seen the change. After that it is garbage too.
"""

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from stentor.engine.worker.device.device import MemoryReading

GIB = 1 << 30
_POISON = 0xA5


class OrderError(AssertionError):
    """The runner relied on work that it had not waited for."""


def _poison(tensor: torch.Tensor) -> None:
    tensor.view(-1).view(torch.uint8).fill_(_POISON)


@dataclass
class _Copy:
    host: torch.Tensor
    contents: torch.Tensor
    up: bool


class FakeMark:
    def __init__(self, device: "FakeDevice", place: int) -> None:
        self._device = device
        self.place = place

    def wait(self) -> None:
        self._device.run_to(self.place)

    def reached(self) -> bool:
        return self._device.done >= self.place


class FakeGraph:
    def __init__(self, device: "FakeDevice", body: Callable[[], None]) -> None:
        self._device = device
        self._body = body
        self.replays = 0

    def replay(self) -> None:
        assert not self._device.replaying, "a graph was replayed inside another"
        self._device.replaying = self
        try:
            self._body()
        finally:
            self._device.replaying = None
        self.replays += 1


@dataclass
class FakeDevice:
    total: int = GIB
    outside: int = 0
    """Bytes that are none of ours."""
    allocated: int = 0
    spare: int = 0
    """Held by the allocator beside tensors after loading; a step's tensors take it first."""
    activations: int = 0
    """By how much the peak is above."""
    pool: int = 0
    """Bytes that the first graph takes for temporaries, and each for itself."""
    graph: int = 0
    torch_device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    name: str = "a fake device"
    graphs: list[FakeGraph] = field(default_factory=list)
    replaying: FakeGraph | None = None
    done: int = 0
    """Copies that somebody has waited for."""
    settled: int = 0
    uploads: int = 0
    pinned_made: int = 0
    pinned_freed: int = 0
    capture_error: RuntimeError | None = None
    _copies: list[_Copy] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def pinned(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        self._not_in_graph("pinned memory was made")
        tensor = torch.empty(count, dtype=dtype)
        _poison(tensor)
        self.pinned_made += 1
        weakref.finalize(tensor, self._count_freed)
        return tensor

    def _count_freed(self) -> None:
        self.pinned_freed += 1

    def upload(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._not_in_graph("a copy was queued")
        target.copy_(source)
        self.uploads += 1
        self._copies.append(_Copy(source, source.clone(), up=True))

    def download(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._not_in_graph("a copy was queued")
        assert target.shape == source.shape
        assert target.dtype == source.dtype
        _poison(target)
        self._copies.append(_Copy(target, source.clone(), up=False))

    def mark(self) -> FakeMark:
        self._not_in_graph("a mark was set")
        return FakeMark(self, len(self._copies))

    @torch.inference_mode()
    def run_to(self, place: int) -> None:
        with self._lock:
            self._run_to(place)

    def _run_to(self, place: int) -> None:
        for copy in self._copies[self.done : place]:
            if not copy.up:
                copy.host.copy_(copy.contents)
                continue
            if not torch.equal(copy.host, copy.contents):
                raise OrderError("pinned memory was overwritten before its copy was due")
            _poison(copy.host)
        self.done = max(self.done, place)

    def capture(self, body: Callable[[], None]) -> FakeGraph:
        self._not_in_graph("a capture began")
        if self.capture_error is not None:
            raise self.capture_error
        graph = FakeGraph(self, body)
        self.graphs.append(graph)
        return graph

    def memory(self) -> MemoryReading:
        self._not_in_graph("memory was read")
        graphs = len(self.graphs) * self.graph
        pool = self.pool if self.graphs else 0
        reserved = self.allocated + self.spare + pool
        return MemoryReading(
            total=self.total,
            free=self.total - self.outside - reserved - graphs,
            allocated=self.allocated,
            reserved=reserved,
            peak=self.allocated + max(self.activations, self.spare),
        )

    def forget_peak(self) -> None:
        self._not_in_graph("statistics were reset")

    def settle(self) -> None:
        self._not_in_graph("the device was waited for")
        self.run_to(len(self._copies))
        self.settled += 1

    def _not_in_graph(self, what: str) -> None:
        if self.replaying:
            raise OrderError(f"{what} inside a graph")


class ManualClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now
