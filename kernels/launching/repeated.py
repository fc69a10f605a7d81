"""A cache of prepared launches for operations that are called again and again with tensors of the same layout.

A step calls each operation once per layer. Checks, the choice of variant and block sizes, and the launcher depend only
on shapes, strides, dtypes and numbers. These are the same in all layers and mostly in the next step, so a call that
finds a launch kept under them starts it at once.

Nothing is kept or found under Triton's interpreter, or while anything is forced (:mod:`..forced`).
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from torch import Tensor

from ..forced import NOTHING, forced
from ..tuning import Config
from .compiled import Repeated
from .launch import interpreted, launch, launcher_of

MOST_KEPT: Final = 1024
"""The most launches kept per operation; at the limit all are dropped."""

Start = Callable[..., None]
"""Launches a kernel with the given tensors; everything else is fixed."""

T = TypeVar("T")
_shape, _stride, _dtype, _device = attrgetter("shape"), Tensor.stride, attrgetter("dtype"), Tensor.get_device


class LaunchCache(Generic[T]):
    """The prepared launches of one operation."""

    def __init__(self) -> None:
        self._found: dict[Hashable, T] = {}

    def find(self, tensors: Sequence[Tensor], *numbers: Hashable) -> tuple[Hashable, T | None]:
        """Returns the key of CUDA tensors of this layout and of these numbers, and what is kept under it, or None.

        The key is for :meth:`keep`; it is None where nothing may be kept.
        """
        if not tensors[0].is_cuda or forced.get() is not NOTHING or interpreted():
            return None, None
        # not a function of its own: each call counts here
        layouts = *map(_shape, tensors), *map(_stride, tensors), *map(_dtype, tensors), *map(_device, tensors)
        key = *layouts, numbers
        return key, self._found.get(key)

    def keep(self, key: Hashable, found: T) -> T:
        """Keeps ``found`` under a key from :meth:`find`, if there is one; returns it."""
        if key is not None:
            if len(self._found) >= MOST_KEPT:
                self._found.clear()
            self._found[key] = found
        return found


def prepare(
    kernel: Any,
    grid: Sequence[int],
    tensors: Sequence[Tensor | None],
    *numbers: Any,
    config: Config,
    **constants: Any,
) -> Start:
    """Prepares a launch, as by :func:`.launch.launch`, of a kernel whose first arguments are ``tensors``.

    The result takes these tensors or others of the same layout, None at the same positions. For a kernel that reads a
    tensor as another dtype, pass a view of it in ``tensors``; the launch takes the tensor itself. If the kernel has a
    parameter ``DEPENDENT``, it is set here (:mod:`.dependent`).
    """
    dtypes = [None if tensor is None else tensor.dtype for tensor in tensors]

    def args(given: Sequence[Tensor | None]) -> tuple[Any, ...]:
        views = [
            tensor if tensor is None or dtype is None or tensor.dtype == dtype else tensor.view(dtype)
            for tensor, dtype in zip(given, dtypes, strict=True)
        ]
        return *views, *numbers

    if "DEPENDENT" in kernel.arg_names:
        from .dependent import launches_overlap  # late: heavy

        constants["DEPENDENT"] = dependent = launches_overlap()
        config = replace(config, dependent=True) if dependent else config
    if forced.get() is not NOTHING or interpreted() or 0 in grid:
        return lambda *given: launch(kernel, grid, *args(given), config=config, **constants)
    launcher = launcher_of(kernel)
    return Repeated(grid, tensors, numbers, lambda given: launcher.start(grid, args(given), config, constants)).start
