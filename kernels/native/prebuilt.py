"""Libraries built ahead for kinds of x86-64 processors, so that a first start compiles nothing and needs no compiler.

``python -P -m stentor.kernels.native.prebuilt`` builds them into :func:`default_folder`; the container image has them.
A processor that no kind describes compiles the kernels for itself, as without them.
"""

import os
import platform
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .build import BuildError, build, cpu_flags, digest_sources, find_headers, find_sources


@dataclass(frozen=True)
class ProcessorKind:
    """A kind of processor by instructions, named as in ``/proc/cpuinfo``."""

    name: str
    march: str
    options: tuple[str, ...]
    """For the compiler, beside ``-march``."""
    needs: frozenset[str]
    lacks: frozenset[str] = frozenset()
    """Instructions that the kernels use too: a processor with one of them is faster with kernels of its own."""


_AVX2: Final = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe"})
_AVX512: Final = _AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni"}
_BFLOAT16: Final = _AVX512 | {"avx512_bf16", "avx512vbmi"}
_TILES: Final = frozenset({"amx_tile", "amx_bf16", "amx_int8"})
_VNNI_OPTIONS: Final = ("-mavx512vnni",)
_BFLOAT16_OPTIONS: Final = (*_VNNI_OPTIONS, "-mavx512bf16", "-mavx512vbmi")
_TILE_OPTIONS: Final = (*_BFLOAT16_OPTIONS, "-mamx-tile", "-mamx-bf16", "-mamx-int8")
KINDS: Final = (
    ProcessorKind("amx", "x86-64-v4", _TILE_OPTIONS, _BFLOAT16 | _TILES),
    ProcessorKind("avx512-bf16", "x86-64-v4", _BFLOAT16_OPTIONS, _BFLOAT16, _TILES),
    ProcessorKind("avx512-vnni", "x86-64-v4", _VNNI_OPTIONS, _AVX512, frozenset({"avx512_bf16", "avx512vbmi"})),
    ProcessorKind("avx2", "x86-64-v3", (), _AVX2, frozenset({"avx512f", "avx_vnni"})),
)
"""Sapphire Rapids and later Xeons; Zen 4 and 5; Cascade Lake; Zen 2 and 3, Haswell to Comet Lake."""


def default_folder() -> Path:
    """Returns ``share/stentor/native`` of this Python environment."""
    return Path(sys.prefix) / "share" / "stentor" / "native"


def kind_of(flags: frozenset[str]) -> ProcessorKind | None:
    """Returns the kind with exactly those instructions of ``flags`` that the kernels use; None if there is none."""
    return next((kind for kind in KINDS if kind.needs <= flags and not kind.lacks & flags), None)


def find_prebuilt(folder: Path | None = None) -> Path | None:
    """Returns the library for this processor, built from the sources as they are now; None if ``folder`` has none."""
    folder = folder or default_folder()
    if not folder.is_dir() or (kind := kind_of(cpu_flags())) is None:
        return None
    path = _path(folder, kind)
    return path if path.exists() else None


def build_ahead(kind: ProcessorKind, folder: Path) -> Path:
    """Compiles the library of a kind of processor, which need not be this one, into ``folder``.

    Raises:
        BuildError: no compiler, or one that does not know the instructions.
    """
    target = _path(folder, kind)
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as scratch:
            os.replace(build(cache_dir=Path(scratch), march=kind.march, options=kind.options), target)
    return target


def _path(folder: Path, kind: ProcessorKind) -> Path:
    digest = digest_sources((kind.march, *kind.options), find_sources(), find_headers())
    return folder / f"kernels-{kind.name}-{digest}.so"


if __name__ == "__main__":
    if platform.machine() != "x86_64":
        print(f"none is built ahead for {platform.machine()}: kernels are compiled at the first start")
        sys.exit()
    for each in KINDS:
        try:
            print(build_ahead(each, default_folder()), flush=True)
        except BuildError as error:
            sys.exit(str(error))
