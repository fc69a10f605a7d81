"""The native kernels under AddressSanitizer and UndefinedBehaviorSanitizer, which end a process that reads or writes
beside its memory, or computes what C++ does not define.

``make sanitize``. A compiler that instruments what it compiles stands before the others on ``PATH``, and its library is
kept in ``.sanitized``; nothing else of the program is changed. Memory of the C heap is watched, where torch has the
tensors that tests make; the memory files of caches and packed weights are not.
"""

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
HOME: Final = ROOT / ".sanitized"
_SANITIZERS: Final = "address,undefined"
# the sizes of objects are left to AddressSanitizer, which knows those of all
_OPTIONS: Final = (
    f"-fsanitize={_SANITIZERS} -fno-sanitize=object-size -fno-sanitize-recover=undefined "
    "-fno-omit-frame-pointer -g1 -O1"
)
"""The last level of optimisation counts."""
_TESTS: Final = ("tests/kernels", "tests/engine/layers")
_CHOSEN: Final = (
    *("-m", "not triton and not compiles and not alone and not proof"),
    *("--processes", "2", "--timeout", "3600", "-p", "no:cacheprovider"),
    # it measures resident memory, to which the sanitizer adds what was freed
    *("--deselect", "tests/kernels/test_linear_packed.py::test_prepared_rows_are_given_back"),
)
_BUILD: Final = "from stentor.kernels.native.build import build; print(build())"
_USED: Final = "from stentor.kernels.native.load import library; print(library().path)"
_OVERRUN: Final = """
#include <cstdlib>
extern "C" __attribute__((visibility("default"))) int overrun(int at) {
    volatile char *few = static_cast<char *>(std::malloc(8));
    return few[at];
}
extern "C" __attribute__((visibility("default"))) int shifted(int by) { return 1 << by; }
"""
_SHOWN: Final = {"overrun": (8, "heap-buffer-overflow"), "shifted": (32, "shift exponent 32 is too large")}
"""What ends a process, and how the report of it reads."""


def main(arguments: Sequence[str]) -> int:
    """Run the tests named in ``arguments``, by default those of the kernels; returns an exit code, 2 without a
    sanitizer."""
    compiler = shutil.which("g++")
    libraries = [] if compiler is None else [_library(compiler, name) for name in ("libasan.so", "libstdc++.so")]
    if compiler is None or None in libraries:
        print("no g++ with AddressSanitizer: apt-get install --no-install-recommends g++")
        return 2
    wrapper = HOME / "bin" / "g++"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(f'#!/bin/sh\nexec "{compiler}" "$@" {_OPTIONS}\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    plain = {
        **os.environ,
        "PATH": f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(HOME / _SANITIZERS),
    }
    watched = {
        **plain,
        "LD_PRELOAD": " ".join(map(str, libraries)),
        "ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0:allocator_may_return_null=1:handle_segv=0",
        "PYTHONMALLOC": "malloc",
        "OMP_NUM_THREADS": "1",
    }
    if not _sees(wrapper, watched):
        print(f"the sanitizers did not report what was made for them: {compiler}, libasan.so or libubsan.so is broken")
        return 2
    print("==> compiling the kernels with sanitizers (minutes, the first time)", flush=True)
    subprocess.run([sys.executable, "-P", "-c", _BUILD], cwd=ROOT, env=plain, check=True)
    used = subprocess.run(
        [sys.executable, "-P", "-c", _USED], cwd=ROOT, env=watched, capture_output=True, text=True, check=True
    )
    if not Path(used.stdout.strip()).is_relative_to(HOME):
        print(f"the kernels were built ahead ({used.stdout.strip()}): remove that file")
        return 2
    command = [sys.executable, "-P", "-m", "pytest", *(arguments or (*_CHOSEN, *_TESTS))]
    return subprocess.run(command, cwd=ROOT, env=watched, check=False).returncode


def _library(compiler: str, name: str) -> Path | None:
    told = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    path = Path(told.stdout.strip())
    return path if path.is_absolute() else None


def _sees(compiler: Path, environment: Mapping[str, str]) -> bool:
    """Whether a library that reads beyond its memory, or shifts by too much, ends the process that has loaded it, with
    a report."""
    source, made = HOME / "overrun.cpp", HOME / "overrun.so"
    source.write_text(_OVERRUN)
    plain = {**environment, "LD_PRELOAD": ""}
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", made], env=plain, check=True)
    found = []
    for function, (wrong, report) in _SHOWN.items():
        for given in (0, wrong):
            code = f"import ctypes; ctypes.CDLL({str(made)!r}).{function}({given})"
            done = subprocess.run(
                [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
            )
            found.append((done.returncode != 0, report in done.stderr))
    return found == [(False, False), (True, True)] * len(_SHOWN)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
