"""A simulated GPU as a :class:`.device.Device`: a worker is set up as on a real one, and every kernel is compiled.

Tensors on the device have shapes and no contents (torch's fake tensors); host tensors are real.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final

import msgspec
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter, tree_map_only

from .device import MemoryReading

_TOTAL: Final = 80 << 30
"""Bytes of the device; usage is not counted."""


class DryMark:
    def wait(self) -> None:
        pass

    def reached(self) -> bool:
        return True


class DryGraph(msgspec.Struct, frozen=True):
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
        return MemoryReading(_TOTAL, _TOTAL, 0, 0, 0)

    def forget_peak(self) -> None:
        pass

    def settle(self) -> None:
        pass


class _FakeOnDevice(FakeTensorMode):
    """Makes only tensors on the device fake."""

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
        # without constant values, from which torch would compute on the device
        args, kwargs = tree_map_only(torch.Tensor, self._fake, given)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if isinstance(tensor, FakeTensor) else self.from_tensor(tensor)


_MADE_UP: Final = (torch.rand, torch.randint, torch.randn, torch.randperm)
_WRITES: Final = (
    *(torch.Tensor.__setitem__, torch.Tensor.copy_),
    *(torch.Tensor.normal_, torch.Tensor.random_, torch.Tensor.uniform_),
)


_READS: Final = (torch.Tensor.tolist, torch.Tensor.item)


class _InOtherWords(TorchFunctionMode):
    """Replaces operations that a torch without CUDA refuses on fake CUDA tensors: indexing, copies, random numbers.
    What a step that is waited for reads is zeros."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in _MADE_UP and (device := torch.device(kwargs.get("device") or "cpu")).type == "cuda":
            made = func(*args, **kwargs | {"device": "meta", "generator": None})
            return torch.empty(made.shape, dtype=made.dtype, device=device)
        if args and isinstance(args[0], FakeTensor):
            if func is torch.Tensor.__getitem__:
                return indexed(args[0], args[1])
            if func in _WRITES:
                return args[0]  # it has no contents
            if func in _READS:
                return func(torch.zeros(args[0].shape, dtype=args[0].dtype))
        return func(*args, **kwargs)


def indexed(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    """``tensor[index]`` by operations that torch dispatches; masks are not supported."""
    parts = list(index) if isinstance(index, tuple) else [index]
    named = sum(part is not None and part is not Ellipsis for part in parts)
    at = next((place for place, part in enumerate(parts) if part is Ellipsis), len(parts))
    parts[at : at + 1] = [slice(None)] * (tensor.dim() - named)
    chosen: dict[int, torch.Tensor] = {}
    dim = 0
    for part in parts:
        if isinstance(part, int):
            tensor = tensor.select(dim, part)
            continue
        if part is None:
            tensor = tensor.unsqueeze(dim)
        elif isinstance(part, slice):
            start, stop, step = part.indices(tensor.shape[dim])
            tensor = torch.ops.aten.slice.Tensor(tensor, dim, start, max(start, stop), step)
        else:
            chosen[dim] = torch.as_tensor(part)
        dim += 1
    return torch.ops.aten.index.Tensor(tensor, [chosen.get(each) for each in range(dim)]) if chosen else tensor


def _is_on_device(value: object) -> bool:
    return isinstance(value, FakeTensor) or (isinstance(value, torch.device) and value.type == "cuda")


@contextmanager
def dry_device() -> Iterator[DryDevice]:
    """Context in which tensors on CUDA devices are fake."""
    with _FakeOnDevice(allow_non_fake_inputs=True), _InOtherWords():
        yield DryDevice()
