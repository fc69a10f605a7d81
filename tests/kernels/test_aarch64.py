"""The native code for AArch64: compiled by a cross compiler, and its vector code run under an emulator.

``vectors.cpp`` is compiled for this processor too, so that what it expects is what other tests have found to be right.
"""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from stentor.kernels.native.build import FLAGS, KERNELS, find_compiler, find_sources
from stentor.tests.kernels.helpers import COMPILES

pytestmark = COMPILES

CROSS = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64"
PROCESSORS = {"armv8-a": "cortex-a53", "armv8.2-a+dotprod": "neoverse-n1", "armv8.6-a": "max"}
"""Without products of bytes (Raspberry Pi 4), with them (Graviton 2, Ampere Altra), and with those of bfloat16 too
(Graviton 3 and 4, Grace); and what the emulator calls such a processor."""
LINKED = ("linear/native.cpp", "linear_packed/", "native/native.cpp", "native/native_amx.cpp")
"""What ``vectors.cpp`` calls."""


def compile_with(compiler: str, *arguments: object) -> None:
    command = [compiler, *FLAGS, f"-I{KERNELS / 'native'}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def cross_compiler() -> str:
    if (found := shutil.which(CROSS)) is None:
        pytest.skip(f"needs {CROSS} (make arm)")
    return found


@pytest.mark.proof(each="unit")
@pytest.mark.parametrize("unit", find_sources(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_unit_compiles_without_a_warning(unit: Path) -> None:
    compile_with(cross_compiler(), "-Wall", "-Werror", "-fsyntax-only", unit)


@pytest.mark.proof(each="processor")
@pytest.mark.parametrize("processor", ["native", *PROCESSORS])
def test_vector_code_is_the_plain_definitions(processor: str, tmp_path: Path) -> None:
    there = processor != "native"
    program, run, linked = tmp_path / "vectors", list[str](), list[str]()
    if there:
        if (emulator := shutil.which(EMULATOR)) is None:
            pytest.skip(f"needs {EMULATOR} (make arm)")
        run, linked = [emulator, "-cpu", PROCESSORS[processor]], ["-static"]
    sources = [path for path in find_sources() if f"{path.parent.name}/{path.name}".startswith(LINKED)]
    compiler = cross_compiler() if there else find_compiler()
    here = Path(__file__).with_name("vectors.cpp")
    compile_with(compiler, "-O1", *linked, f"-march={processor}", here, *sources, "-o", program)
    done = subprocess.run([*run, program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lanes = 4 if there or platform.machine() == "aarch64" else None
    assert lanes is None or done.stdout == f"0 of a register of {lanes} lanes differ\n"
