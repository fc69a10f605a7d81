"""Kernels compiled and not run: says without a GPU whether a kernel compiles for one.

Launchers are called with fake CUDA tensors (``FakeTensorMode``) inside :func:`dry_run`, so that guards, block sizes and
specialisations are those of a real launch.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from stentor.kernels.launch import instead, interpreted
from stentor.kernels.tuning import Config


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
        """Whether it multiplies matrices by Blackwell's instructions, Hopper's warpgroup ones or the older ones."""
        return any(name in self.ptx for name in ("tcgen05.mma", "wgmma", "mma.sync"))


@contextmanager
def dry_run(capability: int = 90) -> Iterator[list[CompiledKernel]]:
    """Within the block launches only compile, for the given compute capability (90: Hopper); yields what they made.

    No GPU is needed. Raises RuntimeError where Triton interprets: nothing can be compiled then.
    """
    if interpreted():
        raise RuntimeError("a dry run compiles kernels: TRITON_INTERPRET must not be set")
    from triton.runtime import driver  # late: heavy

    compiled: list[CompiledKernel] = []
    token = instead.set(lambda *launched: compiled.append(_compile(*launched)))
    driver.set_active(CompileOnly(capability))
    try:
        yield compiled
    finally:
        driver._active = None  # its own reset would look for a GPU
        instead.reset(token)


class CompileOnly:
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
