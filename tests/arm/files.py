"""What runs programs for AArch64 here: a Python of Debian's and wheels of PyPI's, unpacked into one folder."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from stentor.tests.kernels.test_aarch64 import CROSS, EMULATOR

ROOT: Final = Path(__file__).resolve().parent.parent.parent
HOME: Final = ROOT / ".arm"
MARCH: Final = "armv8.6-a"
"""What emulated code is compiled for: ``native`` would ask the processor beneath the emulator."""
PYTHON: Final = "3.11"
"""Debian 12's."""
GLIBC: Final = 36
"""Debian 12 has 2.36."""
DEBS: Final = (
    *(f"python{PYTHON}-minimal", f"libpython{PYTHON}-minimal", f"libpython{PYTHON}-stdlib"),
    *("libc6", "libgcc-s1", "libstdc++6", "libgomp1", "libatomic1", "libcrypt1", "libexpat1", "zlib1g", "libssl3"),
    *("libffi8", "libbz2-1.0", "liblzma5", "libsqlite3-0", "libuuid1"),
)
DESCRIBED: Final = """\
processor\t: {cpu}
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp i8mm bf16
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

"""
"""A processor in ``/proc/cpuinfo``. The emulator shows that of the machine beneath, and torch, which finds no processor
of Arm's there, ends with a segmentation fault at its import."""
MAIN_ID: Final = "0x00000000413fd0c1"
"""The same in the register that says what a processor is; without it oneDNN complains."""
ALLOCATOR: Final = "G_SLICE=always-malloc"
"""For the emulator's trees. A fork, and a vfork too, forks the emulator: where another of its threads held GLib's own
allocator, the child waits for it forever."""
FOR_TESTS: Final = ("gguf", "hypothesis", "pytest", "pytest-timeout")


class FetchFailed(Exception):
    """What programs for AArch64 need cannot be fetched; one line."""


def missing_tools() -> list[str]:
    return [name for name in (EMULATOR, CROSS) if shutil.which(name) is None]


def fetch(home: Path) -> None:
    """Fills ``home`` with what it lacks, some 5 GB: torch on PyPI is linked against CUDA. Installs nothing elsewhere.

    Raises :class:`FetchFailed`.
    """
    if not (home / "root/usr/bin" / f"python{PYTHON}").exists():
        for folder in ("apt/lists/partial", "apt/cache/archives/partial", "debs"):
            (home / folder).mkdir(parents=True, exist_ok=True)
        for command in debian_commands(home):
            _run(command, home / "debs")
        for deb in sorted((home / "debs").glob("*.deb")):
            _run(["dpkg", "-x", str(deb), str(home / "root")], home)
    describe_processors(home / "root")
    if not (home / "site").is_dir():
        _run(wheels_command(home / "site.new"), ROOT)
        (home / "site.new").rename(home / "site")


def describe_processors(root: Path) -> None:
    """Where the emulator looks for a file first: what programs read to learn what they run on."""
    (root / "proc").mkdir(parents=True, exist_ok=True)
    (root / "proc/cpuinfo").write_text("".join(DESCRIBED.format(cpu=cpu) for cpu in range(os.cpu_count() or 1)))
    for cpu in range(os.cpu_count() or 1):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/regs/identification"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "midr_el1").write_text(f"{MAIN_ID}\n")


def debian_commands(home: Path) -> list[list[str]]:
    """apt-get with lists, packages and an architecture of its own: what is installed on this machine does not count."""
    own = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "",
        "Dir::State": home / "apt",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": home / "apt/cache",
    }
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in own.items())]
    return [[*apt, "update"], [*apt, "download", *DEBS]]


def wheels_command(target: Path) -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [line.partition(";")[0].strip() for line in project["dependencies"]]
    glibc = [f"--platform=manylinux_2_{minor}_aarch64" for minor in range(17, GLIBC + 1)]
    return [
        *(sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--only-binary=:all:"),
        *("--target", str(target), "--python-version", PYTHON, "--implementation", "cp"),
        *("--platform=manylinux2014_aarch64", *glibc, "-c", "constraints.txt", *named, *FOR_TESTS),
    ]


def emulated_python(home: Path) -> Path:
    """Writes into ``home`` what starts its Python under the emulator, and children of it; and their compiler."""
    folder = home / "bin"
    folder.mkdir(exist_ok=True)
    python = script(
        folder / "python",
        f"export PYTHONHOME={home}/root/usr PYTHONPATH={home}/site:{ROOT}/.link XDG_CACHE_HOME={home}/cache",
        f"export PATH={folder}:$PATH PYTHONDONTWRITEBYTECODE= {ALLOCATOR}",
        f'exec {EMULATOR} -cpu max -L {home}/root -0 {folder}/python {home}/root/usr/bin/python{PYTHON} "$@"',
    )
    script(
        folder / "g++",
        f'for a do shift; [ "$a" = -march=native ] && a=-march={MARCH}; set -- "$@" "$a"; done',
        f'exec {CROSS} "$@"',
    )
    return python


def script(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)
    return path


def _run(command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    except FileNotFoundError:
        raise FetchFailed(f"there is no {command[0]}: the Python for AArch64 comes from Debian 12's packages") from None
    if done.returncode:
        last = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise FetchFailed(f"{command[0]} failed: {last[-1]}")
