"""The one way a Triton kernel is started: on the GPU, or under Triton's interpreter."""

import os
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any

from .compiled import Launcher
from .tuning import Config

Launch = Callable[[Any, Sequence[Any], Config, dict[str, Any]], None]
"""A kernel, its arguments in order, how it is compiled, and its arguments by name."""

instead: ContextVar[Launch | None] = ContextVar("stentor_launch", default=None)
"""What launches are handed to in place of the GPU: how tests compile kernels where there is none."""

_launchers: dict[int, Launcher] = {}
"""By the identity of kernels, which they keep alive: the hash that Triton gives a kernel takes microseconds."""


@cache
def interpreted() -> bool:
    """Whether Triton kernels run in Python here (``TRITON_INTERPRET=1``): decided before Triton is imported."""
    return os.environ.get("TRITON_INTERPRET", "0") in ("1", "true", "on")


def cdiv(number: int, divisor: int) -> int:
    """The quotient, rounded up. Triton's own functions cost microseconds a call, and a step calls them hundreds of
    times."""
    return -(-number // divisor)


def next_power_of_2(number: int) -> int:
    """The least power of two that is not below ``number``, 1 or more."""
    return 1 << max(0, number - 1).bit_length()


def launch(kernel: Any, grid: Sequence[int], *args: Any, config: Config, **constants: Any) -> None:
    """Starts ``kernel`` over ``grid`` (one to three sizes; nothing happens where one is 0).

    Args:
        kernel: a ``triton.jit`` function.
        args: its arguments in order, tensors and numbers.
        config: block sizes, passed by name, and how the kernel is compiled.
        constants: further arguments by name.
    """
    if 0 in grid:
        return
    if interpreted():
        kernel[tuple(grid)](*args, **{**config.sizes, **constants})
        return
    if (other := instead.get()) is not None:
        other(kernel, args, config, {**config.sizes, **constants})
        return
    launcher_of(kernel).start(grid, args, config, constants)


def launcher_of(kernel: Any) -> Launcher:
    """What was compiled of ``kernel``, which is kept."""
    launcher = _launchers.get(id(kernel))
    if launcher is None:
        launcher = _launchers[id(kernel)] = Launcher(kernel)
    return launcher
