"""Products, attention and adapters under the compiler's sanitizers: they touch what is theirs, and threads do not meet.

On x86-64 by emulated tiles; vector code of AArch64 under an emulator, where ThreadSanitizer does not start.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from stentor.kernels.native.build import KERNELS, find_compiler, find_sources
from stentor.tests.kernels.helpers import COMPILES
from stentor.tests.kernels.test_aarch64 import EMULATOR, PROCESSORS, cross_compiler
from stentor.tests.kernels.tile_library import IS_X86

pytestmark = COMPILES

SOURCES = ("linear_packed/", "low_rank/", "native/", *(f"attention/native_{of}" for of in ("bf16", "int8", "float8")))
"""What ``sanitized.cpp`` calls. Of attention, what has instructions of its own."""
# not optimised: compiled in half of the time, and nothing is removed before it is looked at
OPTIONS = ("-std=c++17", "-O0", "-g1", "-pthread", "-ffp-contract=off", "-Wno-psabi", "-fno-sanitize-recover=all")


def assert_clean(folder: Path, compiler: str, *options: str, run: tuple[str, ...] = ()) -> None:
    """Also that a row has its bits by itself, with threads that help."""
    environment = os.environ | {"TSAN_OPTIONS": "halt_on_error=1"}
    sources = [path for path in find_sources() if f"{path.parent.name}/{path.name}".startswith(SOURCES)]
    program, objects = folder / "program", list[str]()
    for number, source in enumerate([Path(__file__).with_name("sanitized.cpp"), *sources]):
        objects.append(str(folder / f"{number}.o"))
        command = [compiler, *OPTIONS, *options, f"-I{KERNELS / 'native'}", "-c", str(source), "-o", objects[-1]]
        subprocess.run(command, check=True)
    subprocess.run([compiler, *OPTIONS, *options, *objects, "-o", str(program)], check=True)
    done = subprocess.run([*run, program], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.proof(each="sanitizer")
@pytest.mark.skipif(not IS_X86, reason="tiles are x86's")
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_kernels_on_tiles_run_clean(sanitizer: str, tmp_path: Path) -> None:
    assert_clean(tmp_path, find_compiler(), "-march=native", "-DSTENTOR_EMULATED_TILES", f"-fsanitize={sanitizer}")


@pytest.mark.proof(each="processor")
@pytest.mark.parametrize("processor", ["armv8-a", "armv8.6-a"])
def test_vector_code_of_aarch64_runs_clean(processor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = cross_compiler()
    if (emulator := shutil.which(EMULATOR)) is None:
        pytest.skip(f"needs {EMULATOR} (make arm)")
    monkeypatch.setenv("ASAN_OPTIONS", "detect_leaks=0")  # the emulator lets nobody look for them
    run = (emulator, "-cpu", PROCESSORS[processor], "-L", "/usr/aarch64-linux-gnu")
    assert_clean(tmp_path, compiler, f"-march={processor}", "-fsanitize=address,undefined", run=run)
