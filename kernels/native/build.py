"""Compiles the C++ kernels with the machine's own compiler into one shared library, kept in a cache.

The file name has a hash of everything that decides the content (sources, flags, compiler, CPU), so a library with the
right name is current and is never rebuilt. It is linked under a temporary name and renamed, so processes that build at
the same time get the same result.
"""

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

KERNELS = Path(__file__).resolve().parent.parent
FLAGS: tuple[str, ...] = (
    "-O3",
    "-std=c++17",
    "-fPIC",
    "-pthread",
    "-fno-math-errno",
    "-fno-trapping-math",
    # A multiplication and an addition are fused only where the source says so: results must not depend on what the
    # optimiser found.
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-Wno-psabi",
)
THIS_CPU = "native"
"""The value of ``-march`` unless another is given."""
ABANDONED_SECONDS = 3600.0
STUCK_SECONDS = 300.0
"""How long a build of another process is waited for while it finishes no unit."""
_LOOK_SECONDS = 0.1
PRELUDE = KERNELS / "native" / "prelude.h"
"""A header that is precompiled for all units, if there are enough of them."""
PRELUDE_PAYS = 5
COMPILERS: tuple[str, ...] = ("g++", "c++", "clang++")

ProgressCallback = Callable[[int, int], None]
"""Called with (units done, units in all), from the building thread."""


class BuildError(Exception):
    """No native library can be built or loaded; the message says why in one line."""


def default_cache_dir() -> Path:
    """Returns ``$XDG_CACHE_HOME/stentor/native``, or the same under ``~/.cache``."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "stentor" / "native"


def find_sources() -> list[Path]:
    """Returns every compile unit in a stable order: separate long-running ones first."""
    return sorted(KERNELS.rglob("native*.cpp"), key=lambda path: (path.stem == "native", path))


def find_headers() -> list[Path]:
    return sorted(KERNELS.rglob("*.h"))


def find_compiler() -> str:
    """Returns the absolute path of the first C++ compiler on PATH.

    Raises:
        BuildError: there is none.
    """
    for name in COMPILERS:
        if path := shutil.which(name):
            return path
    raise BuildError(f"no C++ compiler on PATH (looked for {', '.join(COMPILERS)}); install one, for example g++")


def build(
    *,
    sources: Sequence[Path] | None = None,
    headers: Sequence[Path] | None = None,
    compiler: str | None = None,
    cache_dir: Path | None = None,
    progress: ProgressCallback | None = None,
    march: str = THIS_CPU,
    options: Sequence[str] = (),
) -> Path:
    """Returns the path of the library; compiles it only if it is not in the cache.

    Args:
        sources: compile units; None takes every ``native*.cpp`` of ``kernels/``.
        headers: files that units include from ``kernels/native``; part of the hash.
        compiler: a C++ compiler; None takes the first found on PATH.
        cache_dir: where libraries are kept; None takes :func:`default_cache_dir`.
        progress: called with the number of units done, also of another process's build while it is waited for; not
            called if the library is cached.
        march: the processor to compile for, as the compiler names it; this one by default.
        options: further options of compiler and linker; part of the hash.

    Raises:
        BuildError: no compiler, a unit that does not compile, or a cache that cannot be written.
    """
    sources = find_sources() if sources is None else list(sources)
    headers = find_headers() if headers is None else list(headers)
    compiler = compiler or find_compiler()
    try:
        folder = cache_dir or default_cache_dir()
    except RuntimeError as error:
        raise BuildError(
            f"no folder for the native kernels: {error} set XDG_CACHE_HOME to a writable folder"
        ) from error
    options = (f"-march={march}", *options)
    target = folder / f"kernels-{_key(sources, headers, compiler, options)}.so"
    if target.exists():
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        with _alone_in(folder, progress, len(sources) + 1):
            if not target.exists():
                with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as scratch:
                    os.replace(_compile(sources, compiler, options, Path(scratch), progress), target)
    except OSError as error:
        raise BuildError(
            f"cannot build the native kernels in {folder}: {error}; set XDG_CACHE_HOME to a writable folder"
        ) from error
    return target


@contextlib.contextmanager
def _alone_in(folder: Path, progress: ProgressCallback | None, total: int) -> Iterator[None]:
    """Lets one process build at a time: others that want a library wait, and tell how far that build is.

    A build that does not move on, as its process was stopped, is waited for no longer than ``STUCK_SECONDS``: two at a
    time are only slower.
    """
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        seen, since = -1, time.monotonic()
        while not _locked(held):
            done = _units_done(folder)
            if done != seen:
                seen, since = done, time.monotonic()
                if progress:
                    progress(min(done, total), total)
            elif time.monotonic() - since > STUCK_SECONDS:
                break
            time.sleep(_LOOK_SECONDS)
        yield
    finally:
        os.close(held)


def _locked(held: int) -> bool:
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _units_done(folder: Path) -> int:
    """Returns how many units are compiled in the builds that run in ``folder``."""
    done = 0
    for scratch in folder.glob(".build-*"):
        with contextlib.suppress(FileNotFoundError):  # a build that has just ended
            done += sum(name.endswith(".o") for name in os.listdir(scratch))
    return done


def _sweep(folder: Path) -> None:
    """Removes the leftovers of killed builds; a running build is younger."""
    for scratch in folder.glob(".build-*"):
        if time.time() - scratch.stat().st_mtime > ABANDONED_SECONDS:
            shutil.rmtree(scratch, ignore_errors=True)


def _compile(
    sources: Sequence[Path], compiler: str, options: Sequence[str], scratch: Path, progress: ProgressCallback | None
) -> Path:
    """Compiles the units in parallel and links them; returns the library inside ``scratch``."""
    total = len(sources) + 1
    done = 0
    objects = [scratch / f"{index}.o" for index in range(len(sources))]
    command = [compiler, *FLAGS, *options, f"-I{PRELUDE.parent}"]
    if progress:
        progress(done, total)
    if len(sources) >= PRELUDE_PAYS:
        # beside its source, which a compiler reads that does not take what is compiled
        prelude = Path(shutil.copy(PRELUDE, scratch))
        _run([*command, "-x", "c++-header", str(prelude), "-o", f"{prelude}.gch"], str(PRELUDE))
        command += ["-include", str(prelude)]
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        jobs = [
            pool.submit(_run, [*command, "-c", str(source), "-o", str(obj)], str(source))
            for source, obj in zip(sources, objects, strict=True)
        ]
        try:
            for job in as_completed(jobs):
                job.result()
                done += 1
                if progress:
                    progress(done, total)
        except BuildError:
            pool.shutdown(cancel_futures=True)
            raise
    library = scratch / "kernels.so"
    _run([compiler, *options, "-shared", *map(str, objects), "-pthread", "-o", str(library)], "the link step")
    if progress:
        progress(total, total)
    return library


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["?"]
        raise BuildError(f"{Path(command[0]).name} failed on {what} (status {done.returncode}): {lines[0].strip()}")


def _compiler_version(compiler: str) -> str:
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise BuildError(f"cannot run the C++ compiler {compiler}: {error}") from error
    if done.returncode != 0:
        raise BuildError(f"the C++ compiler {compiler} does not run: --version ended with status {done.returncode}")
    return done.stdout


def _key(sources: Sequence[Path], headers: Sequence[Path], compiler: str, options: Sequence[str]) -> str:
    machine = (compiler, _compiler_version(compiler), platform.machine(), _cpu_description())
    return digest_sources((*options, *machine), sources, headers)


def digest_sources(parts: Sequence[str], sources: Sequence[Path], headers: Sequence[Path]) -> str:
    """Returns 24 hexadecimal digits of ``FLAGS``, ``parts`` and the names and contents of the files."""
    digest = hashlib.sha256()
    for part in (*FLAGS, *parts):
        digest.update(f"{part}\0".encode())
    for file in (*sources, *headers):
        content = file.read_bytes()
        digest.update(f"{file.name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:24]


def cpu_flags() -> frozenset[str]:
    """Returns the instructions of this machine's first processor, as ``/proc/cpuinfo`` names them."""
    found = re.search(r"^(?:flags|features)\s*:(.*)$", _cpu_description(), re.MULTILINE | re.IGNORECASE)
    return frozenset(found[1].split()) if found else frozenset()


def _cpu_description() -> str:
    """Returns what ``-march=native`` depends on: a cache on a shared home must not serve another CPU's code."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "features", "cpu part", "cpu implementer")
    first = re.split(r"\n\s*\n", text, maxsplit=1)[0]
    return "\n".join(line for line in first.splitlines() if line.split(":")[0].strip().lower() in wanted)


if __name__ == "__main__":  # `make venv`, before any package is there; what fails is told by the first start
    with contextlib.suppress(BuildError):
        build()
