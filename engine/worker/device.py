"""What the runner needs of an accelerator: a stream of work, copies to and from it, marks in it, and graphs.

Everything that is queued runs in the order in which it was queued, some time later; only waiting for a
:class:`Mark` tells that it has. A device that lives in host memory stands behind the same interface in tests.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch


class Mark(Protocol):
    """A place in the stream of work."""

    def wait(self) -> None:
        """Blocks until all that was queued before it is done, other threads of this process running meanwhile.

        May be called from any thread, more than once. Raises what the device says of work that failed.
        """

    def reached(self) -> bool:
        """Whether all that was queued before it is done."""


class Graph(Protocol):
    """Work that is queued by one call, with the tensors that it was captured with."""

    def replay(self) -> None: ...


@dataclass(frozen=True)
class MemoryReading:
    """Bytes of device memory."""

    total: int
    free: int
    """As the driver counts, over all processes but workers of other models that share the device."""
    reserved: int
    """Held by this process's allocator, in use or cached."""
    peak: int
    """Most that was reserved since :meth:`Device.forget_peak`: more than tensors took, by what lay between them."""

    @property
    def outside(self) -> int:
        """Taken by all but this process's tensors: its context and libraries, graphs, and other processes."""
        return self.total - self.free - self.reserved


class Device(Protocol):
    """One accelerator. All but ``Mark.wait`` is called from the thread that made it."""

    @property
    def torch_device(self) -> torch.device:
        """Where tensors are made."""

    @property
    def name(self) -> str:
        """For the operator."""

    def pinned(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A flat host tensor that copies may run from and to while the host goes on."""

    def upload(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queues a copy from pinned memory, which must not change until a later mark is reached."""

    def download(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queues a copy to pinned memory, whose contents mean nothing until a later mark is reached."""

    def mark(self) -> Mark:
        """Marks what has been queued so far."""

    def capture(self, body: Callable[[], None]) -> Graph:
        """Records the work that ``body`` queues, which does not run. Graphs share the memory of their temporaries.

        The kernels must be compiled, and the libraries that they come from loaded: run ``body`` once before. A
        graph reads and writes the very tensors that ``body`` did, which must outlive it.
        """

    def memory(self) -> MemoryReading: ...

    def forget_peak(self) -> None:
        """From here on :attr:`MemoryReading.peak` counts anew."""

    def settle(self) -> None:
        """Waits for all queued work and gives cached memory back to the driver."""
