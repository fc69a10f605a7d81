"""A device step that waits for its device, found without a device.

The step runs on tensors of torch's device ``meta``, which stands for the GPU: shapes and dtypes are real, nothing is
computed, and kernels are chosen as for a GPU. Every operation of torch passes :func:`no_waiting`, which refuses those
that make the host wait, or copy between it and the device behind its back.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from stentor.kernels.forced import forcing

aten = torch.ops.aten

READS: Final = {
    aten._local_scalar_dense,
    aten.is_nonzero,
    aten.equal,
    aten.allclose,
    aten.nonzero,
    aten.nonzero_numpy,
    aten.argwhere,
    aten.masked_select,
    aten.bincount,
    aten.unique_consecutive,
    aten.unique_dim,
    aten._unique,
    aten._unique2,
    aten.repeat_interleave,
    aten.histc,
    aten._linalg_check_errors,
    aten.multinomial,
}
"""They look at values on the device, and the host at what they find."""
COPIES: Final = {torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor}
MASKED: Final = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
"""With a mask they count its ones first; with indices they do not."""
MASKS: Final = (torch.bool, torch.uint8)


MOVES: Final = {aten._to_copy, aten.to, aten.copy_}
"""They may copy between host and device."""


class WaitError(AssertionError):
    """An operation makes the host wait for the device."""


class _NoConstants(TorchFunctionMode):
    """No tensor is made on a device of numbers that the host has: their copy waits for all that is queued."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in COPIES and isinstance(made, torch.Tensor) and made.is_meta and not _is_on_device(args[:1]):
            raise WaitError(f"{func.__name__} copies numbers of the host to the device")
        return made


class _NoReads(TorchDispatchMode):
    def __init__(self, *, takes_inputs: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._takes_inputs = takes_inputs

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given, packet = list(_tensors((args, kwargs or {}))), func.overloadpacket
        if packet in READS and _is_on_device(given) and not _has_known_size(func, kwargs or {}):
            raise WaitError(f"{func} reads what lies on the device")
        if packet in MASKED and any(each.dtype in MASKS and each.is_meta for each in _tensors(args[1])):
            raise WaitError(f"{func} counts the ones of a mask")
        made = func(*args, **(kwargs or {}))
        both = (*given, *_tensors(made))
        if self._takes_inputs and packet in MOVES and not _is_on_device(args[-1:] if packet is aten.copy_ else given):
            return made
        if len({each.is_meta for each in both if each.dim() or each.is_meta}) > 1:  # a number of the host is passed on
            shapes = [("device" if each.is_meta else "host", tuple(each.shape)) for each in both]
            raise WaitError(f"{func} goes between host and device: {shapes}")
        return made


@contextmanager
def no_waiting(*, takes_inputs: bool = False) -> Iterator[None]:
    """Within the block an operation that waits for a tensor on the device, or copies to or from it, raises: mostly
    :class:`WaitError`; ``item()`` and copies to the host RuntimeError, by torch itself.

    ``takes_inputs``: copies to the device are let through.
    """
    with ExitStack() as modes:
        if not takes_inputs:
            modes.enter_context(_NoConstants())
        modes.enter_context(_NoReads(takes_inputs=takes_inputs))
        yield


def _is_on_device(values: Any) -> bool:
    return any(each.is_meta for each in _tensors(values))


def _has_known_size(func: Any, kwargs: dict[str, Any]) -> bool:
    return func is aten.repeat_interleave.self_int or kwargs.get("output_size") is not None


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


@contextmanager
def launching_nothing(launched: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Within the block, kernels are started nowhere, for a device of compute capability 9.0; ``launched`` hears their
    names."""
    from triton.runtime import driver  # late: heavy

    from stentor.kernels.launching.dry_run import CompileOnly

    driver.set_active(CompileOnly(90))
    try:
        with forcing(launch=lambda kernel, *_: launched(kernel.__name__)):
            yield
    finally:
        driver._active = None  # its own reset would look for a GPU
