"""CPU kernels that were built ahead for kinds of processors."""

import ctypes
import platform
import re
import subprocess
from pathlib import Path

import pytest

from stentor.kernels import native
from stentor.kernels.native import load
from stentor.kernels.native.build import FLAGS, cpu_flags, find_compiler, find_headers, find_sources
from stentor.kernels.native.prebuilt import KINDS, ProcessorKind, build_ahead, find_prebuilt, kind_of

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="names x86 processors")

HASWELL = "fma f16c avx avx2 bmi1 bmi2 abm movbe"
SKYLAKE_SERVER = f"{HASWELL} avx512f avx512bw avx512cd avx512dq avx512vl"
ICE_LAKE_SERVER = f"{SKYLAKE_SERVER} avx512_vnni avx512vbmi avx512_vbmi2"
PROCESSORS = {
    "Sandy Bridge": ("avx", None),
    "Haswell": (HASWELL, "avx2"),
    "Zen 3": (f"{HASWELL} sha_ni vaes", "avx2"),
    "Alder Lake": (f"{HASWELL} avx_vnni", None),
    "Skylake server": (SKYLAKE_SERVER, None),
    "Cascade Lake": (f"{SKYLAKE_SERVER} avx512_vnni", "avx512-vnni"),
    "Ice Lake server": (ICE_LAKE_SERVER, None),
    "Zen 4": (f"{ICE_LAKE_SERVER} avx512_bf16", "avx512-bf16"),
    "Zen 5": (f"{ICE_LAKE_SERVER} avx512_bf16 avx_vnni avx512_vp2intersect", "avx512-bf16"),
    "Sapphire Rapids": (f"{ICE_LAKE_SERVER} avx512_bf16 avx_vnni avx512_fp16 amx_tile amx_bf16 amx_int8", "amx"),
}


@pytest.mark.parametrize("processor", PROCESSORS)
def test_a_processor_takes_the_kind_with_all_its_instructions_that_kernels_use(processor: str) -> None:
    flags, expected = PROCESSORS[processor]
    kind = kind_of(frozenset(flags.split()))
    assert (kind.name if kind else None) == expected


def _macros(*options: str) -> set[str]:
    """The names of instructions that the sources ask for and that the compiler defines with ``options``."""
    asked = {
        name for file in (*find_sources(), *find_headers()) for name in re.findall(r"__[A-Z0-9_]+__", file.read_text())
    }
    command = [find_compiler(), *FLAGS, *options, "-dM", "-E", "-x", "c++", "/dev/null"]
    defined = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = asked & set(re.findall(r"^#define (\w+)", defined, re.MULTILINE))
    # beside AVX-512 the sources do not look at the narrower form
    return found - {"__AVXVNNI__"} if "__AVX512F__" in found else found


@pytest.mark.parametrize(
    ("kind", "processor"),
    [("amx", "sapphirerapids"), ("avx512-vnni", "cascadelake"), ("avx2", "haswell"), ("avx2", "znver3")],
)
def test_a_kind_is_compiled_with_the_code_paths_of_its_processors(kind: str, processor: str) -> None:
    (made,) = (each for each in KINDS if each.name == kind)
    assert _macros(f"-march={made.march}", *made.options) == _macros(f"-march={processor}")


def test_a_library_built_ahead_for_this_processor_has_the_code_paths_of_one_built_here() -> None:
    if (kind := kind_of(cpu_flags())) is not None:
        assert _macros(f"-march={kind.march}", *kind.options) == _macros("-march=native")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_kind_needs_every_instruction_that_its_code_paths_use(kind: ProcessorKind) -> None:
    macros = {name.strip("_").lower().replace("_", "") for name in _macros(f"-march={kind.march}", *kind.options)}
    needs = {need.replace("_", "") for need in kind.needs}
    assert {name for name in macros if name.startswith(("avx", "amx", "fma", "f16c"))} <= needs | {"avx"}


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    source = tmp_path / "native.cpp"
    source.write_text('extern "C" __attribute__((visibility("default"))) int answer() { return 42; }\n')
    monkeypatch.setattr("stentor.kernels.native.prebuilt.find_sources", lambda: [source])
    monkeypatch.setattr("stentor.kernels.native.build.find_sources", lambda: [source])
    return source


THIS_PROCESSOR = ProcessorKind("any", "x86-64", (), frozenset())


def test_a_library_that_was_built_ahead_is_found_and_answers(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stentor.kernels.native.prebuilt.KINDS", (THIS_PROCESSOR,))
    folder = tmp_path / "ahead"
    assert find_prebuilt(folder) is None
    built = build_ahead(THIS_PROCESSOR, folder)
    assert find_prebuilt(folder) == built
    assert list(folder.iterdir()) == [built], "nothing else is left there"
    assert ctypes.CDLL(str(built)).answer() == 42


def test_one_of_other_sources_or_for_another_processor_is_not_taken(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stentor.kernels.native.prebuilt.KINDS", (THIS_PROCESSOR,))
    build_ahead(THIS_PROCESSOR, tmp_path / "ahead")
    monkeypatch.setattr("stentor.kernels.native.prebuilt.KINDS", ())
    assert find_prebuilt(tmp_path / "ahead") is None
    monkeypatch.setattr("stentor.kernels.native.prebuilt.KINDS", (THIS_PROCESSOR,))
    sources.write_text(sources.read_text().replace("42", "43"))
    assert find_prebuilt(tmp_path / "ahead") is None


def test_a_start_takes_it_and_needs_no_compiler(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stentor.kernels.native.prebuilt.KINDS", (THIS_PROCESSOR,))
    monkeypatch.setattr("stentor.kernels.native.prebuilt.default_folder", lambda: tmp_path / "ahead")
    built = build_ahead(THIS_PROCESSOR, tmp_path / "ahead")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(load, "_state", load._State())
    library = native.prepare()
    assert library is not None
    assert library.path == built
    assert library.is_prebuilt
    assert library.handle.answer() == 42
