"""Compiles kernels without running them, for a GPU that need not be present.

Call launchers with fake CUDA tensors (``FakeTensorMode``) inside :func:`dry_run`. Guards, block sizes and
specialisations are then those of a real launch.
"""

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ..forced import forcing
from ..tuning import Config
from .launch import interpreted


@dataclass(frozen=True)
class CompiledKernel:
    """The compiler's output for one launch."""

    name: str
    config: Config
    shared_bytes: int
    """Dynamic shared memory of one program, in bytes."""
    capability: int
    ttir: str
    """Triton's own representation, before anything is laid out for the GPU."""
    ptx: str
    cubin: bytes

    @property
    def registers(self) -> int:
        """Registers per thread, at most 255."""
        return _resource_usage(self.cubin)["REG"]

    @property
    def stack_bytes(self) -> int:
        """Stack bytes per thread: spilled registers and arrays indexed at run time."""
        return _resource_usage(self.cubin)["STACK"]

    @property
    def uses_tensor_cores(self) -> bool:
        """Whether it has tensor core instructions: Blackwell's, Hopper's warpgroup ones or the older ones."""
        return any(name in self.ptx for name in ("tcgen05.mma", "wgmma", "mma.sync"))

    def count(self, instruction: str) -> int:
        """Returns how many of the machine instructions match a regular expression, such as ``HGMMA``."""
        return sum(bool(re.match(instruction, each)) for each in self.instructions)

    @property
    def instructions(self) -> list[str]:
        """The machine instructions (SASS), in order, each without its predicate."""
        return _instructions(self.cubin)

    @property
    def loop(self) -> list[str]:
        """The machine instructions of the longest loop, in order; none if there is no loop."""
        return max(_loops(self.cubin), key=len, default=[])

    @property
    def warnings(self) -> list[str]:
        """The assembler's warnings that it serialises warpgroup matrix products."""
        return _warnings(self.ptx, self.capability)


@contextmanager
def dry_run(capability: int = 90) -> Iterator[list[CompiledKernel]]:
    """Within the block, launches only compile for the given compute capability (90: Hopper); yields the compiled
    kernels.

    No GPU is needed. Raises RuntimeError under Triton's interpreter, which compiles nothing.
    """
    compiled: list[CompiledKernel] = []

    def add(made: Any, config: Config) -> None:
        compiled.append(
            CompiledKernel(
                name=made.metadata.name,
                config=config,
                shared_bytes=made.metadata.shared,
                capability=capability,
                ttir=made.asm["ttir"],
                ptx=made.asm["ptx"],
                cubin=made.asm["cubin"],
            )
        )

    with compiling(capability, add):
        yield compiled


@contextmanager
def compiling(capability: int, made: Callable[[Any, Config], None]) -> Iterator[None]:
    """Within the block, launches only compile for the given compute capability; ``made`` gets each launch's kernel,
    which Triton compiled or found in its cache. Raises as :func:`dry_run`."""
    if interpreted():
        raise RuntimeError("a dry run compiles kernels: TRITON_INTERPRET must not be set")
    from triton.runtime import driver  # late: heavy

    driver.set_active(CompileOnly(capability))
    try:
        with forcing(launch=lambda kernel, args, config, meta: made(_compile(kernel, args, config, meta), config)):
            yield
    finally:
        driver._active = None  # driver.reset() would look for a GPU


class CompileOnly:
    """A stand-in for Triton's driver where there is no GPU."""

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


@cache
def _stand_in() -> Any:
    """Returns the class that stands for a tensor; imports Triton late."""
    from triton.runtime.jit import MockTensor

    class StandIn(MockTensor):  # type: ignore[misc]
        """A stand-in for a tensor, or a view, in memory that begins at an aligned address."""

        def __init__(self, tensor: torch.Tensor) -> None:
            super().__init__(tensor.dtype, list(tensor.shape))
            self._at = int(tensor.storage_offset()) * tensor.itemsize

        def data_ptr(self) -> int:
            return self._at

    return StandIn


def _compile(kernel: Any, args: Sequence[Any], config: Config, meta: dict[str, Any]) -> Any:
    stand_in = _stand_in()

    def mocked(value: Any) -> Any:
        return stand_in(value) if isinstance(value, torch.Tensor) else value

    meta = {name: mocked(value) for name, value in meta.items()}
    return kernel.warmup(*map(mocked, args), grid=(1,), **meta, **config.options)


def _tool(name: str) -> str:
    """Returns the path of an NVIDIA tool that Triton ships."""
    import triton

    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name)


def _run(tool: str, *options: str, of: bytes, suffix: str) -> str:
    """Returns what the tool at this path prints for a file with the contents ``of``."""
    with tempfile.NamedTemporaryFile(suffix=suffix) as file:
        file.write(of)
        file.flush()
        command = [tool, *options, file.name]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
        return done.stdout.decode()


@cache
def _resource_usage(cubin: bytes) -> dict[str, int]:
    text = _run(_tool("cuobjdump"), "-res-usage", of=cubin, suffix=".cubin")
    return {name: int(number) for name, number in re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", text)}


@cache
def _listing(cubin: bytes) -> list[str]:
    """Returns the labels, with a colon behind, and the instructions in order, each without its predicate."""
    text = _run(_tool("nvdisasm"), "-c", of=cubin, suffix=".cubin")
    found = re.findall(r"^(\.L_x_\d+:)|^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?(\S.*?)\s*;", text, re.MULTILINE)
    return [label or instruction for label, instruction in found]


def _instructions(cubin: bytes) -> list[str]:
    """Returns the machine instructions in order, each without its predicate."""
    return [line for line in _listing(cubin) if not line.endswith(":")]


def _loops(cubin: bytes) -> list[list[str]]:
    """Returns the instructions from each target of a branch back to that branch."""
    lines, loops = _listing(cubin), []
    for last, line in enumerate(lines):
        target = re.match(r"BRA.*\((\.L_x_\d+)\)", line)
        if target and f"{target[1]}:" in lines[:last]:
            whole = lines[lines.index(f"{target[1]}:") : last + 1]
            loops.append([each for each in whole if not each.endswith(":")])
    return loops


@cache
def _warnings(ptx: str, capability: int) -> list[str]:
    from triton.backends.nvidia.compiler import get_ptxas  # late: heavy

    target = f"sm_{capability}{'a' if capability >= 90 else ''}"
    options = "-v", f"--gpu-name={target}", "-o", "/dev/null"
    text = _run(get_ptxas(capability).path, *options, of=ptx.encode(), suffix=".ptx")
    return [line.strip() for line in text.splitlines() if re.search("warning|Performance Loss", line)]
