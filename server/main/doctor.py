"""``stentor doctor``: checks this machine's requirements for a server, with remedies.

Every check is quick and imports nothing heavy. Slow set-ups, and missing parts for some models, are warnings.
"""

import contextlib
import errno
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

import httpx

from stentor.engine.loading.download.hub import default_cache
from stentor.engine.worker.memory import memory_limit

from ..http.listening import StartError, bind
from ..options.environment import COMPILERS, gpus, torch_build

Verdict = Literal["ok", "warning", "problem"]

_GIB: Final = 1 << 30
_LEAST_PYTHON: Final = (3, 11)
_LEAST_MEMORY: Final = 2 * _GIB
"""The demo model's server takes 0.8 GiB, and its first start compiles."""
_LEAST_DISK: Final = 2 * _GIB
_LEAST_DESCRIPTORS: Final = 4096
_SECONDS: Final = 5.0
_PROGRAM: Final = "#include <atomic>\n#include <vector>\nint main() { return 0; }\n"
_HUB: Final = "https://huggingface.co"


class Finding(NamedTuple):
    """Result of one check."""

    what: str
    verdict: Verdict
    fact: str
    advice: str = ""


def examine(environment: Mapping[str, str], host: str, port: int) -> Iterator[Finding]:
    """Runs the checks one by one, so that each is shown as it ends."""
    yield _python()
    yield _system()
    yield from _devices()
    yield _compiler()
    yield _memory()
    yield _descriptors()
    yield _port(host, port)
    yield _cache(default_cache())
    yield _hub(environment)


def _python() -> Finding:
    fact = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info < _LEAST_PYTHON:
        return Finding("python", "problem", fact, "install Python 3.11 or later")
    return Finding("python", "ok", fact)


def _system() -> Finding:
    fact = f"{platform.system()} {platform.release()} {platform.machine()}"
    if platform.system() != "Linux":
        return Finding("system", "problem", fact, "run it on Linux, or in a container (docs/operate/deployment.md)")
    if platform.machine() not in ("x86_64", "aarch64"):
        return Finding("system", "warning", fact, "it is made for x86_64 and aarch64; nothing was tried elsewhere")
    return Finding("system", "ok", fact)


def _devices() -> Iterator[Finding]:
    build = torch_build()
    if build is None:
        yield Finding("torch", "problem", "not installed", "install it: pip install torch")
        return
    found = [f"{name}, {size / _GIB:.0f} GiB" for name, size in gpus()]
    if found and not build.cuda:
        advice = "install torch for CUDA to use them: pip install torch, without an index for CPUs"
        yield Finding("torch", "problem", f"{build.version} without CUDA, beside {len(found)} GPUs", advice)
    else:
        yield Finding("torch", "ok", f"{build.version}{f' for CUDA {build.cuda}' if build.cuda else ', for CPUs'}")
    if not found and build.cuda and Path("/proc/driver/nvidia").exists():
        advice = "the driver is there and does not start: try nvidia-smi; in a container, give it --gpus all"
        yield Finding("gpu", "problem", "none that the CUDA driver knows", advice)
    else:
        yield Finding("gpu", "ok", "; ".join(found) or "none: models run on the CPU")


def _compiler() -> Finding:
    path = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    advice = "install g++ (Debian: apt install g++): without it models run on torch's kernels, several times slower"
    if path is None:
        return Finding("c++ compiler", "warning", "none", advice)
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "a.cpp", Path(folder) / "a.so"
        source.write_text(_PROGRAM)
        command = [path, "-std=c++17", "-shared", "-fPIC", "-pthread", "-o", str(made), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        why = next((line for line in done.stderr.splitlines() if "error" in line), "it fails")
        return Finding("c++ compiler", "warning", f"{path}: {why}", advice)
    return Finding("c++ compiler", "ok", path)


def _memory() -> Finding:
    most = memory_limit()
    fact = f"{most / _GIB:.1f} GiB for this machine or container"
    if most < _LEAST_MEMORY:
        advice = f"give it {_LEAST_MEMORY // _GIB} GiB or more; `stentor env MODEL` says what a model takes"
        return Finding("memory", "warning", fact, advice)
    return Finding("memory", "ok", fact)


def _descriptors() -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = hard == resource.RLIM_INFINITY
    fact = "no limit" if endless else f"up to {hard}"
    if not endless and hard < _LEAST_DESCRIPTORS:
        advice = f"raise the hard limit (ulimit -Hn {_LEAST_DESCRIPTORS}): each connection takes one"
        return Finding("open files", "warning", fact, advice)
    return Finding("open files", "ok", fact)


def _port(host: str, port: int) -> Finding:
    try:
        with contextlib.closing(bind(host, port)):
            return Finding("port", "ok", f"{host}:{port} is free")
    except (StartError, OSError) as error:
        taken = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE
        return Finding("port", "problem", str(error), "`ss -ltnp` shows who has it" if taken else "")


def _cache(folder: Path) -> Finding:
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        advice = "make it writable, or name another by XDG_CACHE_HOME"
        return Finding("cache", "problem", f"{there} cannot be written", advice)
    free = shutil.disk_usage(there).free
    fact = f"{folder}, {free / _GIB:.1f} GiB free"
    if free < _LEAST_DISK:
        return Finding("cache", "warning", fact, "make room: models are fetched there, and kernels compiled")
    return Finding("cache", "ok", fact)


def _hub(environment: Mapping[str, str]) -> Finding:
    address = environment.get("HF_ENDPOINT") or _HUB
    if environment.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        return Finding("hugging face", "ok", "offline, as HF_HUB_OFFLINE says: what the cache has is served")
    try:
        httpx.head(address, timeout=_SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL, socket.gaierror) as error:
        advice = (
            "models by OWNER/NAME need it; folders, files and pypi: packages do not. Behind a proxy, set HTTPS_PROXY"
        )
        return Finding("hugging face", "warning", f"{address}: {str(error) or type(error).__name__}", advice)
    return Finding("hugging face", "ok", f"{address} answers")


def report(findings: Iterator[Finding], colour: bool) -> bool:
    """Prints each; whether there is no problem."""
    marks = {"ok": ("32", "ok     "), "warning": ("33", "warning"), "problem": ("31", "PROBLEM")}
    good = True
    for finding in findings:
        code, mark = marks[finding.verdict]
        good = good and finding.verdict != "problem"
        shown = f"\033[{code}m{mark}\033[0m" if colour else mark
        print(f"{shown}  {finding.what:13}  {finding.fact}", flush=True)
        if finding.advice:
            print(f"{'':24}{finding.advice}", flush=True)
    return good
