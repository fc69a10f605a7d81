"""AArch64 on a machine of another kind, from an empty folder to an answer: ``make arm``.

Compiles the native code for it and runs its vector code under an emulator; fetches a Python for it, with torch, into
``.arm``; asks the whole server there what it asks one of this machine, and beside that runs tests of kernels and
channels there: products and attention over each kind of weight and of cache, with rows, columns and inputs that fill
vectors and that do not. Several threads meet in plain products and, of packed ones, in the vector code.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from .chat import Differs, compare_answers
from .files import HOME, ROOT, FetchFailed, emulated_python, fetch, missing_tools

VECTORS: Final = ("tests/kernels/test_aarch64.py",)
PACKED: Final = "tests/kernels/test_linear_packed.py"
LARGE: Final = f"{PACKED}::test_large_products_are_cut_without_a_seam"
EMULATED: Final = (
    *(PACKED, "tests/kernels/test_linear.py", "tests/kernels/test_attention.py"),
    *("tests/kernels/test_attention_coded.py", "tests/engine/channel/test_atomics.py"),
    "tests/engine/channel/test_ring.py",
)
LEFT_OUT: Final = (LARGE, f"{PACKED}::test_memory_is_given_back", f"{PACKED}::test_prepared_rows_are_given_back")
"""The first multiplies a hundred times as much as any other, and shows no instruction that others do not; the rest
would count the emulator's memory."""
BUILD: Final = "from stentor.kernels.native.build import build; print(build())"
SAMPLE: Final = (
    *("--turn=0", "-m", "not triton and not proof and not alone and not hypothesis"),
    *("--processes", "2", "--durations", "20", *(f"--deselect={test}" for test in LEFT_OUT)),
)
"""Each value of every parameter, such as kinds of weights and shapes; all pairs would take hours."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns an exit code: 1 where tests failed or answers differ, 2 where tools are missing."""
    parser = argparse.ArgumentParser(prog="make arm", description=__doc__)
    parser.add_argument("tests", nargs="*", help="tests that the emulated Python runs, and nothing else (ARGS)")
    named = parser.parse_args(arguments).tests
    if missing := missing_tools():
        print(f"no {' and no '.join(missing)}: apt-get install --no-install-recommends qemu-user g++-aarch64-linux-gnu")
        return 2
    try:
        with ThreadPoolExecutor(1) as beside:
            fetched = beside.submit(fetch, HOME)
            if not named:
                _step("native code", lambda: _pytest([sys.executable], VECTORS))
            _step("Python for AArch64", fetched.result)
            python = emulated_python(HOME)
            _step("kernels", lambda: subprocess.run([python, "-P", "-c", BUILD], cwd=ROOT, check=True))
            compare = partial(_step, "a chat answer", lambda: print(compare_answers(python)))
            answer = None if named else beside.submit(compare)
            _step("emulated tests", lambda: _pytest([str(python)], named or (*SAMPLE, *EMULATED)))
            if answer is not None:
                answer.result()
    except FetchFailed as failed:
        print(failed)
        return 2
    except (Differs, subprocess.CalledProcessError) as failed:
        print(failed)
        return 1
    return 0


def _step(name: str, go: Callable[[], object]) -> None:
    began = time.monotonic()
    print(f"==> {name}", flush=True)
    go()
    print(f"==> {name}: {time.monotonic() - began:.0f} s", flush=True)


def _pytest(python: Sequence[str], tests: Sequence[str]) -> None:
    command = [*python, "-P", "-m", "pytest", "-p", "no:cacheprovider", "--timeout", "3600", *tests]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True)


if __name__ == "__main__":
    sys.exit(main())
