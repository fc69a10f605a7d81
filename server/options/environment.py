"""``stentor env``: the machine's facts that matter for Stentor, and for a bug report.

It imports nothing else: versions come from package metadata, GPUs from the driver's own library, so that the command is
quick and works with a broken torch.
"""

import ctypes
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from stentor import __version__
from stentor.engine.loading.download.hub import default_cache
from stentor.engine.sharing.cpu_plan import plan_cpus
from stentor.engine.sharing.cpu_topology import read_topology
from stentor.protocols.ipc.flag import OPTION_PREFIX

from .option import OPTIONS

PACKAGES: Final = ("torch", "triton", "transformers", "tokenizers", "safetensors", "msgspec", "starlette", "uvicorn")
CPU_FEATURES: Final = (
    *("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx_vnni"),
    *("amx_tile", "amx_bf16", "amx_int8", "asimd", "asimddp", "bf16", "i8mm", "sve"),
)
AMX_FEATURES: Final = frozenset({"amx_tile", "amx_bf16", "amx_int8"})
COMPILERS: Final = ("g++", "c++", "clang++")
NAME_BYTES: Final = 256
"""Longest device name that the CUDA driver writes."""


def describe_environment(environment: Mapping[str, str]) -> str:
    """Lines of ``name  value``; values of secret options are not shown."""
    rows = [*_versions(), *_hardware(), *_paths(environment), *_options(environment)]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}}  {value}" for name, value in rows)


def _versions() -> Iterator[tuple[str, str]]:
    yield "stentor", f"{__version__} in {Path(__file__).resolve().parents[1]}"
    yield "python", f"{platform.python_version()} ({sys.executable})"
    yield "system", f"{platform.system()} {platform.release()} {platform.machine()}, {' '.join(platform.libc_ver())}"
    for package in PACKAGES:
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            version = "not installed"
        if package == "torch" and (build := torch_build()) is not None:
            version += f" (CUDA {build.cuda})" if build.cuda else " (no CUDA)"
        yield package, version


class TorchBuild(NamedTuple):
    """A torch that is installed."""

    version: str
    cuda: str
    """The CUDA version it was built for; empty: for CPUs."""


def torch_build() -> TorchBuild | None:
    """From the file that says so; importing torch would take seconds."""
    try:
        found = importlib.metadata.distribution("torch")
        text = Path(str(found.locate_file("torch/version.py"))).read_text()
    except (OSError, importlib.metadata.PackageNotFoundError):
        return None
    cuda = re.search(r"^cuda\b.*?= *['\"]([\d.]+)['\"]", text, flags=re.MULTILINE)
    return TorchBuild(found.version, cuda[1] if cuda else "")


def _hardware() -> Iterator[tuple[str, str]]:
    name, flags = _cpu()
    yield "cpu", f"{name}, {len(os.sched_getaffinity(0))} of {os.cpu_count()} cores usable"
    yield "compute threads", str(plan_cpus(read_topology()))
    yield "cpu features", " ".join(feature for feature in CPU_FEATURES if feature in flags) or "none of those known"
    yield "cpu products", describe_products(flags, tiles_granted)
    yield "memory", f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.1f} GiB"
    yield "c++ compiler", _compiler()
    devices = "; ".join(f"{n}: {name}, {size / 2**30:.1f} GiB" for n, (name, size) in enumerate(gpus()))
    yield "gpu", devices or "none that a CUDA driver knows"


def describe_products(flags: frozenset[str], granted: Callable[[], bool]) -> str:
    """In which form CPU kernels multiply here, where the compiler knows the processor."""
    if not flags >= AMX_FEATURES:
        return "vectors (the processor has no AMX tiles for bfloat16 and int8)"
    return "AMX tiles" if granted() else "vectors (the system refuses AMX tiles; Linux grants them from 5.16 on)"


def tiles_granted() -> bool:
    """Asks the system for tiles, as the kernels do when they are loaded."""
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return bool(ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0)


def _cpu() -> tuple[str, frozenset[str]]:
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        text = ""
    name = re.search(r"^model name\s*: (.*)$", text, flags=re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*: (.*)$", text, flags=re.MULTILINE)
    return name[1] if name else platform.processor() or "unknown", frozenset(flags[1].split() if flags else ())


def _compiler() -> str:
    path = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    if path is None:
        return f"none (looked for {', '.join(COMPILERS)}): CPU kernels run on torch, slower"
    done = subprocess.run([path, "--version"], capture_output=True, text=True, errors="replace", check=False)
    return f"{done.stdout.partition(chr(10))[0] or 'unknown version'} ({path})"


def gpus() -> Iterator[tuple[str, int]]:
    """Name and bytes of memory of each CUDA device, from the driver; empty if it does not start."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return
    for ordinal in range(count.value):
        device = ctypes.c_int()
        name = ctypes.create_string_buffer(NAME_BYTES)
        memory = ctypes.c_size_t()
        driver.cuDeviceGet(ctypes.byref(device), ordinal)
        driver.cuDeviceGetName(name, NAME_BYTES, device)
        driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
        yield name.value.decode(errors="replace"), memory.value


def _paths(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    yield "model cache", str(default_cache())
    hub = environment.get("HF_HUB_CACHE")
    home = environment.get("HF_HOME") or str(default_cache().parent.parent / "huggingface")
    yield "hugging face cache", hub or str(Path(home) / "hub")
    yield "hugging face", "offline" if environment.get("HF_HUB_OFFLINE", "0") not in ("", "0") else "online"


def _options(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    secret = {option.variable for option in OPTIONS if option.kind.secret}
    known = {option.variable for option in OPTIONS}
    for variable in sorted(environment):
        if variable.startswith(OPTION_PREFIX):
            # a misspelt variable may well hold a key
            yield variable, "***" if variable in secret or variable not in known else environment[variable]
