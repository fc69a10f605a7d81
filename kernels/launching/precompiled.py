"""Kernels compiled on another machine: a portable, read-only folder that is used beside Triton's own cache.

``stentor precompile`` fills it, without a GPU if need be; :data:`VARIABLE` names it on the machine with the GPU. Triton
looks a kernel up by a digest of its source, argument types, options, target and compiler. A kernel that differs in any
of them is compiled as usual.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "TRITON_PRECOMPILED_DIR"
_MANAGER: Final = "TRITON_CACHE_MANAGER"
_ABOUT: Final = "about.json"
DRIVER_MODULE: Final = "cuda_utils"
"""Triton's module that calls the driver. It lies in the folder by its name: from Triton 3.8 on its digest depends on
where the machine has its libraries."""
_KEPT: Final = (".json", ".cubin")
"""The files to keep: the compiler's intermediate forms are nine tenths of its output."""
_LIBCUDA: Final = "libcuda.so.1"
_DRIVER_FUNCTION: Final = re.compile(r"\b(cu[A-Z]\w*)\s*\(")


@dataclass(frozen=True)
class Toolchain:
    """Versions that must be the same where kernels are compiled and where they are used."""

    triton: str
    compiler: str
    """A digest of Triton's own sources and library."""
    assembler: str
    """The builds that ``ptxas`` reports: of older GPUs, and of the newest (with Triton 3.9 from Hopper on)."""
    python: str
    """The suffix of extension modules: the kernel launcher is one."""

    @classmethod
    def here(cls) -> "Toolchain":
        from triton import __version__  # late: heavy
        from triton.backends.nvidia.compiler import get_ptxas_version
        from triton.runtime.cache import triton_key

        return cls(
            __version__,
            hashlib.sha256(triton_key().encode()).hexdigest()[:16],
            " and ".join(get_ptxas_version(arch).strip().splitlines()[-1] for arch in (80, 100)),
            str(sysconfig.get_config_var("EXT_SUFFIX")),
        )


def use() -> None:
    """Makes Triton look into the folder that the environment names, if any. Call it before the first launch."""
    if os.environ.get(VARIABLE):
        os.environ.setdefault(_MANAGER, "stentor.kernels.launching.precompiled_cache:PrecompiledCache")


def differences(folder: Path) -> list[str]:
    """Returns why the kernels of ``folder`` are not found here, one clause for each reason; empty if they are.

    Raises OSError or ValueError for a folder that :func:`fill` did not make.
    """
    made, here = json.loads((folder / _ABOUT).read_text()), asdict(Toolchain.here())
    return [f"{name} is {here[name]}, not {made.get(name)}" for name in here if here[name] != made.get(name)]


def unloadable(folder: Path) -> list[str]:
    """Returns which launcher modules of ``folder`` cannot be loaded here, one clause each.

    Needs the driver's library; touches no GPU.
    """
    from triton.runtime.build import _load_module_from_path  # late: heavy

    suffix, wrong = module_file(""), []
    for module in sorted(folder.rglob(f"*{suffix}")):
        try:
            _load_module_from_path(module.name.removesuffix(suffix), str(module))
        except ImportError as error:
            wrong.append(f"{module.relative_to(folder)} cannot be loaded: {error}")
    return wrong


def module_file(name: str) -> str:
    """Returns the file name of the extension module ``name``."""
    return f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"


def fill(folder: Path, made: Iterable[Any]) -> int:
    """Copies to ``folder`` what is needed to run the compiled kernels ``made``; returns how many there are.

    Raises RuntimeError if there is no C compiler for the launcher modules.
    """
    from triton.runtime.cache import _base32  # late: heavy

    kernels = {kernel.hash: kernel for kernel in made}
    for digest, kernel in kernels.items():
        place = folder / _base32(digest)
        place.mkdir(parents=True, exist_ok=True)
        for name, path in kernel.metadata_group.items():
            if name.endswith(_KEPT):
                shutil.copyfile(path, place / name)
    with tempfile.TemporaryDirectory() as scratch:
        library, modules = Path(scratch), _modules(kernels.values())
        _stand_in_library(library, modules)
        for name, source in modules:
            _build(folder, library, name, source)
    (folder / _ABOUT).write_text(json.dumps(asdict(Toolchain.here()), indent=1) + "\n")
    return len(kernels)


def _modules(kernels: Iterable[Any]) -> list[tuple[str, str]]:
    """Returns name and C source of each module that Triton compiles before it launches any of ``kernels``."""
    from triton.backends.nvidia import driver

    modules = {(DRIVER_MODULE, Path(driver.dirname, "driver.c").read_text()): None}
    # newer drivers have one launcher for all kernels
    if (make_launcher := getattr(driver, "make_launcher", None)) is not None:
        for kernel in kernels:
            source, meta = kernel.src, getattr(kernel.metadata, "tensordesc_meta", None)
            modules["__triton_launcher", make_launcher(source.constants, dict(source.signature), meta)] = None
    return list(modules)


def _stand_in_library(folder: Path, modules: Iterable[tuple[str, str]]) -> None:
    """Builds a stand-in for libcuda to link the modules against.

    The real library comes with a GPU. The stand-in has its name and the functions that the modules call. Without these
    a linker drops the dependency, and no module could be loaded on the GPU's machine.
    """
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise RuntimeError("there is no C compiler; install gcc, or name one as CC")
    functions = sorted({name for _, source in modules for name in _DRIVER_FUNCTION.findall(source)})
    named = folder / "functions.c"
    named.write_text("".join(f"void {name}(void) {{}}\n" for name in functions))
    options = ["-shared", "-fPIC", f"-Wl,-soname,{_LIBCUDA}", str(named), "-o", str(folder / _LIBCUDA)]
    subprocess.run([compiler, *options], check=True)


def _build(folder: Path, library: Path, name: str, source: str) -> None:
    """Compiles a module as Triton does, but does not load it."""
    from triton.backends.nvidia import driver
    from triton.runtime.build import _build

    targets = _targets(folder, name, source)
    if name != DRIVER_MODULE and all(target.exists() for target in targets):  # that one may be an older Triton's
        return
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / f"{name}.c"
        file.write_text(source)
        places = [driver.libdevice_dir, str(library)]
        built = _build(name, str(file), scratch, places, driver.include_dirs, driver.libraries, [])
        for target in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)  # a server that has it loaded keeps its file
            shutil.copyfile(built, target)


def _targets(folder: Path, name: str, source: str) -> list[Path]:
    """Returns where a module is looked for: the driver's by its name, others by the digests that Triton may ask for."""
    from triton.runtime.cache import _base32

    if name == DRIVER_MODULE:
        return [folder / module_file(name)]
    digests = [hashlib.sha256((source + key).encode()).hexdigest() for key in _platform_keys()]
    return [folder / _base32(digest) / module_file(name) for digest in digests]


def _platform_keys() -> list[str]:
    """Returns the names that Triton may give this machine.

    Python asks the program ``file`` how executables are linked. Images often lack it, and then the linkage is unknown.
    """
    from triton.runtime.build import platform_key

    known = platform_key().split(",")[:-1]
    return [",".join([*known, linkage]) for linkage in ("ELF", "")]


def main() -> int:
    """``python -m stentor.kernels.launching.precompiled FOLDER``: whether its kernels and their launchers work here."""
    folder = Path(sys.argv[1])
    kernels = len(list(folder.glob("*/*.cubin")))
    wrong = differences(folder) or unloadable(folder)
    print(f"{kernels} kernels; " + ("; ".join(wrong) if wrong else "they are found here, and what starts them"))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
