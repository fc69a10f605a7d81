"""The interface of an accelerator: a stream of work, copies to and from it, marks in it, and graphs.

Queued work runs in order, some time later; only waiting for a :class:`Mark` tells that it has run. Tests use a device
in host memory behind the same interface.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec
import torch


class Mark(Protocol):
    """A position in the stream of work."""

    def wait(self) -> None:
        """Block until all work queued before is done; other threads of this process run meanwhile.

        May be called from any thread, more than once. Raises the device's error if the work failed.
        """

    def reached(self) -> bool:
        """Whether all work queued before is done."""


class Graph(Protocol):
    """Captured work, queued by one call, with the tensors of the capture."""

    def replay(self) -> None: ...


class MemoryReading(msgspec.Struct, frozen=True):
    """Bytes of device memory."""

    total: int
    free: int
    """Free bytes as the driver reports them, plus what workers of other models on the device hold."""
    allocated: int
    """Of this process's tensors."""
    reserved: int
    """Held by this process's allocator, in use or cached."""
    peak: int
    """Most bytes reserved since :meth:`Device.forget_peak`; includes fragmentation."""

    @property
    def outside(self) -> int:
        """Bytes used otherwise than by this process's tensors: its context and libraries, graphs, other processes."""
        return self.total - self.free - self.reserved


class Device(Protocol):
    """One accelerator. Only ``Mark.wait`` may be called from another thread than the creator's."""

    @property
    def torch_device(self) -> torch.device:
        """The device of its tensors."""

    @property
    def name(self) -> str:
        """Its name for the operator."""

    def pinned(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A flat host tensor for copies that run while the host goes on."""

    def upload(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy from pinned memory, which must not change until a later mark is reached."""

    def download(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy to pinned memory, which is undefined until a later mark is reached."""

    def mark(self) -> Mark:
        """Mark the end of the queued work."""

    def capture(self, body: Callable[[], None]) -> Graph:
        """Record the work that ``body`` queues, without running it. Graphs share the memory of temporaries.

        Its kernels must be compiled and their libraries loaded: run ``body`` once before. A graph reads and writes the
        same tensors as ``body``, which must outlive it.
        """

    def memory(self) -> MemoryReading: ...

    def forget_peak(self) -> None:
        """Restart :attr:`MemoryReading.peak`."""

    def settle(self) -> None:
        """Wait for all queued work and return cached memory to the driver."""
