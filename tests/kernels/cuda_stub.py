"""Launches that end in a CUDA driver which runs nothing (``cuda_stub.c``): Triton compiles and starts kernels as for a
GPU, with its own compiled host code, and what reaches the driver can be looked at. Tensors lie in host memory."""

import ctypes
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

from stentor.kernels.launching.launch import interpreted

SIZES = {"i1": 1, "u1": 4, "i32": 4, "u32": 4, "fp32": 4, "i64": 8, "u64": 8}
"""Bytes of parameters by Triton's names; all others are pointers."""


class StubLaunch(ctypes.Structure):
    """What one launch asked of the driver."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_ulonglong),
        ("function", ctypes.c_ulonglong),
        ("params", ctypes.c_ulonglong * 64),
        ("dependent", ctypes.c_uint),
    )


class CudaStub:
    """The driver's library."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
        self._library.stub_last.restype = ctypes.POINTER(StubLaunch)
        self._library.stub_launches.restype = ctypes.c_longlong

    def expect(self, sizes: Sequence[int]) -> None:
        """The next launches have parameters of these sizes."""
        self._library.stub_expect(len(sizes), (ctypes.c_int * len(sizes))(*sizes))

    @property
    def last(self) -> bytes:
        """All of the last launch, while parameters are expected."""
        return bytes(self._library.stub_last().contents)

    @property
    def function(self) -> int:
        """Of the last launch: the driver's handle of what was compiled."""
        return int(self._library.stub_last().contents.function)

    @property
    def dependent(self) -> bool:
        """Whether the last launch may be started before the one before it is complete."""
        return bool(self._library.stub_last().contents.dependent)

    @property
    def launches(self) -> int:
        return int(self._library.stub_launches())


class _StubDriver:
    """Stands where Triton asks its driver for the device."""

    def __init__(self) -> None:
        from triton.backends.nvidia.driver import CudaLauncher, CudaUtils

        self.utils, self.launcher_cls = CudaUtils(), CudaLauncher

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 77

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


@cache  # Triton's host code is linked to the first library that it finds
def build_stub() -> tuple[CudaStub, tempfile.TemporaryDirectory[str]]:
    """The library, and the folder that it is in."""
    import triton

    torch.cuda.is_available()  # torch looks for a driver once: it is not to find this one, which it may find too old
    folder = tempfile.TemporaryDirectory()
    library = Path(folder.name) / "libcuda.so.1"
    include = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
    source = Path(__file__).with_name("cuda_stub.c")
    flags = ["-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname,libcuda.so.1", f"-I{include}"]
    subprocess.run(["cc", *flags, str(source), "-o", str(library)], check=True)
    return CudaStub(library), folder


@contextmanager
def stubbed_cuda() -> Iterator[CudaStub]:
    """Within the block, Triton starts kernels on the stub, one for all of a process.

    Raises RuntimeError where Triton interprets: it starts nothing then.
    """
    if interpreted():
        raise RuntimeError("launches need compiled kernels: TRITON_INTERPRET must not be set")
    import triton
    from triton.runtime import driver

    stub, folder = build_stub()
    with triton.knobs.nvidia.scope():
        triton.knobs.nvidia.libcuda_path = folder.name
        driver.set_active(_StubDriver())
        try:
            yield stub
        finally:
            driver._active = None  # its own reset would look for a GPU
