"""A GPU that is not there, behind the interface of :mod:`.device`: a worker is set up on it as on a real one, and every
kernel that it would launch is compiled.

Tensors on the device have shapes and no contents (torch's fake tensors); those of the host are real.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_iter, tree_map_only

from .device import MemoryReading

_TOTAL: Final = 80 << 30
"""Bytes of the device; what is reserved of them nobody counts."""


class DryMark:
    def wait(self) -> None:
        pass

    def reached(self) -> bool:
        return True


@dataclass(frozen=True)
class DryGraph:
    def replay(self) -> None:
        pass


class DryDevice:
    torch_device = torch.device("cuda", 0)
    name = "a GPU that is not there"

    def pinned(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(count, dtype=dtype)

    def upload(self, target: torch.Tensor, source: torch.Tensor) -> None:
        pass

    def download(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.zero_()

    def mark(self) -> DryMark:
        return DryMark()

    def capture(self, body: Callable[[], None]) -> DryGraph:
        body()
        return DryGraph()

    def memory(self) -> MemoryReading:
        return MemoryReading(_TOTAL, _TOTAL, 0, 0)

    def forget_peak(self) -> None:
        pass

    def settle(self) -> None:
        pass


class _FakeOnDevice(FakeTensorMode):
    """Fake tensors on the device alone."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = MappingProxyType({}),
    ) -> Any:
        given = (args, dict(kwargs or {}))
        if not any(map(_is_on_device, tree_iter(given))):
            return func(*args, **given[1])
        # without their values: what is computed of constants alone would be computed on the device
        args, kwargs = tree_map_only(torch.Tensor, self._fake, given)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if isinstance(tensor, FakeTensor) else self.from_tensor(tensor)


def _is_on_device(value: object) -> bool:
    return isinstance(value, FakeTensor) or (isinstance(value, torch.device) and value.type == "cuda")


@contextmanager
def dry_device() -> Iterator[DryDevice]:
    """Within the block tensors on CUDA devices are fake."""
    with _FakeOnDevice(allow_non_fake_inputs=True):
        yield DryDevice()
