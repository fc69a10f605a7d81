"""The one place that launches Triton kernels, on the GPU or under Triton's interpreter."""

import os
from collections.abc import Sequence
from functools import cache
from typing import Any

from ..forced import forced
from ..tuning import Config
from .compiled import Launcher

_launchers: dict[int, Launcher] = {}
"""By ``id`` of the kernel, which the launcher keeps alive. Triton's own hash of a kernel takes microseconds."""


@cache
def interpreted() -> bool:
    """Whether Triton kernels run in Python (``TRITON_INTERPRET=1``), which is decided before Triton is imported."""
    return os.environ.get("TRITON_INTERPRET", "0") in ("1", "true", "on")


def cdiv(number: int, divisor: int) -> int:
    """Returns the quotient, rounded up. Triton's own function takes microseconds, and a step calls this hundreds of
    times."""
    return -(-number // divisor)


def next_power_of_2(number: int) -> int:
    """Returns the least power of two that is at least ``number``, which is 1 or more."""
    return 1 << max(0, number - 1).bit_length()


def launch(kernel: Any, grid: Sequence[int], *args: Any, config: Config, **constants: Any) -> None:
    """Launches ``kernel`` over ``grid``, which has one to three sizes; does nothing if one is 0.

    Args:
        kernel: a ``triton.jit`` function.
        args: its arguments in order, tensors and numbers.
        config: block sizes, passed by name, and compile options.
        constants: further arguments by name.
    """
    if 0 in grid:
        return
    if interpreted():
        kernel[tuple(grid)](*args, **{**config.sizes, **constants})
        return
    if (other := forced.get().launch) is not None:
        other(kernel, args, config, {**config.sizes, **constants})
        return
    launcher_of(kernel).start(grid, args, config, constants)


def launcher_of(kernel: Any) -> Launcher:
    """Returns the launcher of ``kernel``, which is made once."""
    launcher = _launchers.get(id(kernel))
    if launcher is None:
        launcher = _launchers[id(kernel)] = Launcher(kernel)
    return launcher
