"""AArch64 on a machine of another kind: ``make arm`` compiles the native code for it, runs its vector code under an
emulator, and runs tests in an emulated Python, where there is one.

It installs nothing. What is missing it names, with the commands that get it.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from stentor.tests.kernels.test_aarch64 import CROSS, EMULATOR

ROOT: Final = Path(__file__).resolve().parent.parent
HOME: Final = ROOT / ".arm"
VECTORS: Final = ("tests/kernels/test_aarch64.py",)
EMULATED: Final = ("tests/engine/channel/test_atomics.py", "tests/engine/channel/test_ring.py")
"""What needs no torch, whose import takes 40 s of CPU in the emulator. Others are named on the command line."""
MARCH: Final = "armv8.6-a"
"""What emulated code is compiled for: ``native`` would ask the processor beneath the emulator."""
LIBRARIES: Final = (
    *("libc6", "libgcc-s1", "libstdc++6", "libgomp1", "libatomic1", "libcrypt1", "libexpat1", "zlib1g", "libssl3"),
    *("libffi8", "libbz2-1.0", "liblzma5", "libsqlite3-0", "libuuid1"),
)
PYTHON: Final = ("python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib")
PACKAGES: Final = ("anyio", "httpx", "hypothesis", "msgspec", "pytest", "pytest-timeout", "uvloop")

WITHOUT_PYTHON: Final = f"""\
left out: there is no Python for AArch64 in {HOME.name}/root, with packages in {HOME.name}/site. On Debian 12:

  mkdir -p .arm/debs && cd .arm/debs
  dpkg --add-architecture arm64 && apt-get update
  apt-get download {" ".join(f"{name}:arm64" for name in (*PYTHON, *LIBRARIES))}
  for deb in *.deb; do dpkg -x $deb ../root; done && cd ../..
  .venv/bin/pip install --target .arm/site --only-binary=:all: --python-version 3.11 --platform manylinux2014_aarch64 \\
    --platform manylinux_2_17_aarch64 --platform manylinux_2_28_aarch64 -c constraints.txt {" ".join(PACKAGES)}

Tests of kernels need torch and transformers there too: make arm ARGS="tests/kernels/test_linear.py"."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns an exit code: that of the first tests that failed, or 2 where tools are missing."""
    parser = argparse.ArgumentParser(prog="make arm", description=__doc__)
    parser.add_argument("tests", nargs="*", help=f"tests that an emulated Python runs (default: {' '.join(EMULATED)})")
    options = parser.parse_args(arguments)
    if missing := [name for name in (EMULATOR, CROSS) if shutil.which(name) is None]:
        print(f"no {' and no '.join(missing)}: apt-get install --no-install-recommends qemu-user g++-aarch64-linux-gnu")
        return 2
    native = _pytest([sys.executable], VECTORS) if not options.tests else 0
    if native:
        return native
    if not (HOME / "root/usr/bin/python3.11").exists() or not (HOME / "site").is_dir():
        print(WITHOUT_PYTHON)
        return 2 if options.tests else 0
    return _pytest([str(emulated_python(HOME))], options.tests or EMULATED)


def emulated_python(home: Path) -> Path:
    """Writes into ``home`` what starts its Python under the emulator, and children of it; and their compiler."""
    folder = home / "bin"
    folder.mkdir(exist_ok=True)
    python = _script(
        folder / "python",
        f"export PYTHONHOME={home}/root/usr PYTHONPATH={home}/site:{ROOT}/.link XDG_CACHE_HOME={home}/cache",
        f"export PATH={folder}:$PATH PYTHONDONTWRITEBYTECODE=",
        f'exec {EMULATOR} -cpu max -L {home}/root -0 {folder}/python {home}/root/usr/bin/python3.11 "$@"',
    )
    _script(
        folder / "g++",
        f'for a do shift; [ "$a" = -march=native ] && a=-march={MARCH}; set -- "$@" "$a"; done',
        f'exec {CROSS} "$@"',
    )
    return python


def _script(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)
    return path


def _pytest(python: Sequence[str], tests: Sequence[str]) -> int:
    command = [*python, "-P", "-m", "pytest", "-p", "no:cacheprovider", "--timeout", "3600", *tests]
    return subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
