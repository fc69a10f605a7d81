"""A CUDA GPU as a :class:`.device.Device`."""

import contextlib
import gc
from collections.abc import Callable

import torch

from .device import MemoryReading


class CudaMark:
    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def wait(self) -> None:
        self._event.synchronize()

    def reached(self) -> bool:
        return bool(self._event.query())


class CudaDevice:
    """Puts the calling thread on a stream of its own for good, since the default stream cannot be captured."""

    def __init__(self, torch_device: torch.device, of_others: Callable[[], int] = lambda: 0) -> None:
        """``of_others``: bytes used by workers of other models, which do not count against this one's budget."""
        torch.cuda.set_device(torch_device.index or 0)
        self._of_others = of_others
        self._torch_device = torch.device("cuda", torch.cuda.current_device())
        self._stream = torch.cuda.Stream(self._torch_device)
        torch.cuda.set_stream(self._stream)
        self._pool = torch.cuda.graph_pool_handle()

    @property
    def torch_device(self) -> torch.device:
        return self._torch_device

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name(self._torch_device)

    def pinned(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(count, dtype=dtype, pin_memory=True)

    def upload(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def download(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def mark(self) -> CudaMark:
        event = torch.cuda.Event(blocking=True)  # a spinning event would take a core from the server's processes
        event.record(self._stream)
        return CudaMark(event)

    def capture(self, body: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # torch.cuda.graph() would first wait for the device and empty the allocator's cache, with steps in flight. A
        # tensor freed by the garbage collector, or a thread that waits for a step, must not end the capture.
        collected = gc.isenabled()
        gc.disable()
        try:
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                body()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # it reports the failed capture again
                    graph.capture_end()
                raise
            graph.capture_end()
        finally:
            if collected:
                gc.enable()
        return graph

    def memory(self) -> MemoryReading:
        free, total = torch.cuda.mem_get_info(self._torch_device)
        return MemoryReading(
            total=total,
            free=min(free + self._of_others(), total),
            allocated=torch.cuda.memory_allocated(self._torch_device),
            reserved=torch.cuda.memory_reserved(self._torch_device),
            peak=torch.cuda.max_memory_reserved(self._torch_device),
        )

    def forget_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._torch_device)

    def settle(self) -> None:
        torch.cuda.synchronize(self._torch_device)
        gc.collect()
        torch.cuda.empty_cache()
        # graphs that were dropped may leave their pool in any state: the next ones get a new one
        self._pool = torch.cuda.graph_pool_handle()
