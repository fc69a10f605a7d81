"""The one way a Triton kernel is started: on the GPU, under Triton's interpreter, or compiled and not run.

Without a GPU the interpreter says whether a kernel computes the right numbers, and a dry run whether it
compiles for one: launchers are called with fake CUDA tensors (``FakeTensorMode``) inside :func:`dry_run`,
so guards, block sizes and specialisations are those of a real launch.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from .tuning import Config


@dataclass(frozen=True)
class CompiledKernel:
    """What the compiler made of one launch."""

    name: str
    config: Config
    registers: int
    """Of one thread; more than 255 there are not."""
    stack_bytes: int
    """Of one thread: what was spilled or indexed at run time."""
    shared_bytes: int
    """Of one program, dynamic."""
    ptx: str

    @property
    def uses_tensor_cores(self) -> bool:
        """Whether it multiplies matrices by Hopper's warpgroup instructions or the older ones."""
        return "wgmma" in self.ptx or "mma.sync" in self.ptx


_dry: ContextVar[list[CompiledKernel] | None] = ContextVar("stentor_dry_run", default=None)


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
    meta = {**config.sizes, **constants}
    if interpreted():
        kernel[tuple(grid)](*args, **meta)
        return
    if (compiled := _dry.get()) is not None:
        compiled.append(_compile(kernel, args, config, meta))
        return
    kernel[tuple(grid)](*args, **meta, **config.options)


@contextmanager
def dry_run(capability: int = 90) -> Iterator[list[CompiledKernel]]:
    """Within the block launches only compile, for the given compute capability (90: Hopper); yields what they made.

    No GPU is needed. Raises RuntimeError where Triton interprets: nothing can be compiled then.
    """
    if interpreted():
        raise RuntimeError("a dry run compiles kernels: TRITON_INTERPRET must not be set")
    from triton.runtime import driver  # late: heavy

    compiled: list[CompiledKernel] = []
    token = _dry.set(compiled)
    driver.set_active(_CompileOnly(capability))
    try:
        yield compiled
    finally:
        driver._active = None  # its own reset would look for a GPU
        _dry.reset(token)


class _CompileOnly:
    """Stands where Triton asks its driver for the device; there is none."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_device(self) -> int:
        return self._capability  # Triton keeps compiled kernels by device

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self._capability, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)


def _compile(kernel: Any, args: Sequence[Any], config: Config, meta: dict[str, Any]) -> CompiledKernel:
    from triton.runtime.jit import MockTensor

    def stand_in(value: Any) -> Any:
        return MockTensor(value.dtype, list(value.shape)) if isinstance(value, torch.Tensor) else value

    meta = {name: stand_in(value) for name, value in meta.items()}
    made = kernel.warmup(*map(stand_in, args), grid=(1,), **meta, **config.options)
    usage = _resource_usage(made.asm["cubin"])
    return CompiledKernel(
        name=made.metadata.name,
        config=config,
        registers=usage["REG"],
        stack_bytes=usage["STACK"],
        shared_bytes=made.metadata.shared,
        ptx=made.asm["ptx"],
    )


@cache
def _resource_usage(cubin: bytes) -> dict[str, int]:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], check=True, capture_output=True, text=True).stdout
    return {name: int(number) for name, number in re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", text)}
