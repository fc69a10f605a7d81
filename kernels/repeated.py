"""Operations that are called again and again with tensors laid out alike: what the first call found is kept.

A step calls each operation once a layer. What checks, the choice of a variant and of block sizes, and the launcher find
depends on shapes, strides, dtypes and numbers, which are the same in all layers and mostly in the next step: a call
that finds a launch under these starts it at once.

Nothing is kept where Triton interprets, where launches go elsewhere than to the GPU, and where a variant or block sizes
are forced.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from torch import Tensor

from .compiled import Repeated
from .launch import instead, interpreted, launch, launcher_of
from .tuning import Config
from .tuning.table import NOTHING, asked
from .variants import forced

MOST_KEPT: Final = 1024
"""Of an operation; then all are forgotten."""

Start = Callable[..., None]
"""Starts a kernel with the tensors that it is given, all else being settled."""

T = TypeVar("T")
_shape, _stride, _dtype, _device = attrgetter("shape"), Tensor.stride, attrgetter("dtype"), Tensor.get_device


class Kept(Generic[T]):
    """What calls of one operation have found."""

    def __init__(self) -> None:
        self._found: dict[Hashable, T] = {}

    def find(self, tensors: Sequence[Tensor], *numbers: Hashable) -> T | None:
        """What was kept for tensors on CUDA that are laid out like these, and for these numbers."""
        if not tensors[0].is_cuda or _is_special():
            return None
        return self._found.get(_key(tensors, numbers))

    def keep(self, found: T, tensors: Sequence[Tensor], *numbers: Hashable) -> T:
        """Returns ``found``."""
        if tensors[0].is_cuda and not _is_special():
            if len(self._found) >= MOST_KEPT:
                self._found.clear()
            self._found[_key(tensors, numbers)] = found
        return found


def _key(tensors: Sequence[Tensor], numbers: tuple[Hashable, ...]) -> Hashable:
    layouts = *map(_shape, tensors), *map(_stride, tensors), *map(_dtype, tensors), *map(_device, tensors)
    return *layouts, numbers


def _is_special() -> bool:
    """Whether a call may not go where one before it went."""
    return interpreted() or instead.get() is not None or forced.get() != "auto" or asked.get() is not NOTHING


def prepare(
    kernel: Any,
    grid: Sequence[int],
    tensors: Sequence[Tensor | None],
    *numbers: Any,
    config: Config,
    **constants: Any,
) -> Start:
    """A launch as by :func:`.launch.launch`, of a kernel whose first arguments are ``tensors``.

    It takes them, or others laid out alike, None where there was None. Where a kernel takes a tensor as of another
    dtype, ``tensors`` has a view of it; the launch takes it as it is. Of a kernel that has it, ``DEPENDENT`` is settled
    here (:mod:`.dependent`).
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
    if _is_special() or 0 in grid:
        return lambda *given: launch(kernel, grid, *args(given), config=config, **constants)
    launcher = launcher_of(kernel)
    return Repeated(grid, tensors, numbers, lambda given: launcher.start(grid, args(given), config, constants)).start
