# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""A model's kernels, compiled ahead: a start on a GPU finds each of them and compiles none."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import triton
import triton.language as tl
from torch._subclasses.fake_tensor import FakeTensorMode

from stentor.engine.worker.setup.precompile import precompile
from stentor.kernels.launching.dry_run import compiling
from stentor.kernels.launching.launch import launch
from stentor.kernels.launching.precompiled import VARIABLE, differences, unloadable
from stentor.kernels.launching.precompiled_cache import PrecompiledCache
from stentor.kernels.native import load as native_load
from stentor.kernels.tuning import Config, pick, table_path, tuned_for
from stentor.protocols.ipc.config import SpeculativeConfig, WorkerConfig
from stentor.tests.kernels.cuda_stub import build_stub, stubbed_cuda

pytestmark = pytest.mark.compiles

CAPABILITY = 90
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}


@triton.jit
def copied(x, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < count), mask=at < count)


AGAIN = """
import sys
from pathlib import Path
from triton import knobs

found = []
knobs.compilation.listener = lambda **told: found.append(told["cache_hit"])
from stentor.tests.compile.test_precompile import fill

made = fill(Path(sys.argv[1]), Path(sys.argv[2]))
print(len(found), sum(found), made)
"""

LOADED = """
import json
import sys
from pathlib import Path
from stentor.tests.compile.test_precompile import load_without_a_compiler

print(json.dumps(load_without_a_compiler(Path(sys.argv[1]))))
"""
PROGRAMS = {"os.exec", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"}


def load_without_a_compiler(model: Path) -> tuple[int, list[str]]:
    """How many kernels a start has Triton load, as far as the driver, where the search path leads to no program; and
    all programs that were run, with their arguments. Of this process, which is never the same afterwards."""
    folder = Path(os.environ[VARIABLE])
    without = unloadable(folder)  # all, but where there is a GPU
    assert len(without) in (0, len(list(folder.rglob("*.so"))))
    assert all("libcuda.so.1" in said for said in without)
    build_stub()
    assert unloadable(folder) == []
    os.environ["PATH"] = ""
    os.environ.pop("CC", None)
    programs: list[str] = []
    sys.addaudithook(lambda event, args: programs.append(str(args[1])) if event in PROGRAMS else None)

    def load(_: Path, kernels: Iterable[Any]) -> int:
        with stubbed_cuda():
            return len([kernel.run for kernel in kernels])  # finds what starts it, and has the driver load it

    with patch("stentor.engine.worker.setup.precompile.fill", load):
        loaded = fill(model, Path())
    assert not native_load._state.attempted, "a start on a GPU waits for no kernels of the CPU"
    return loaded, programs


def fill(model: Path, folder: Path, speculative: SpeculativeConfig | None = None) -> int:
    config = WorkerConfig(
        model=str(model),
        load_format="dummy",
        max_model_len=64,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        speculative=speculative,
    )
    return precompile(config, None, CAPABILITY, folder, lambda *_: None)


def _said(script: str, *arguments: Path, **variables: str) -> str:
    """The last line that a process of its own prints."""
    command = [sys.executable, "-P", "-c", script, *map(str, arguments)]
    variables = {**os.environ, "TRITON_INTERPRET": "0", **variables}
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout.splitlines()[-1]


def _again(model: Path, folder: Path, **variables: str) -> tuple[int, ...]:
    """How many kernels another process asks Triton for, how many of them it finds, and how many it fills into."""
    return tuple(map(int, _said(AGAIN, model, folder, **variables).split()))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return folder


@pytest.fixture(scope="module")
def folder(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Filled by a process of its own, as the command is: what other tests have launched is not made twice in one."""
    folder = tmp_path_factory.mktemp("kernels")
    _, _, made = _again(model, folder)
    assert made == len(list(folder.glob("*/*.cubin"))) > 8
    return folder


def test_the_folder_holds_all_that_a_start_compiles_wherever_it_lies(model: Path, folder: Path, tmp_path: Path) -> None:
    moved = folder.rename(tmp_path / "moved")
    try:
        own = tmp_path / "cache"
        variables = {VARIABLE: str(moved), "TRITON_CACHE_DIR": str(own)}
        asked, found, _ = _again(model, tmp_path / "second", **variables)
        assert asked == found == len(list(moved.glob("*/*.cubin")))
        assert not [path for path in own.rglob("*") if path.is_file()]
    finally:
        moved.rename(folder)


def test_what_starts_kernels_is_in_the_folder_too_and_needs_the_drivers_library(folder: Path) -> None:
    """Without that need a module finds none of the driver's functions, and Triton compiles it anew in each process."""
    assert list(folder.glob("cuda_utils.*.so"))
    for module in folder.rglob("*.so"):
        assert b"\0libcuda.so.1\0" in module.read_bytes()


def test_a_start_loads_all_of_the_folder_where_there_is_no_compiler(model: Path, folder: Path, tmp_path: Path) -> None:
    """No program is run but the assembler, for its version. Python looks in vain for ``file``."""
    own = tmp_path / "cache"
    loaded, programs = json.loads(_said(LOADED, model, **{VARIABLE: str(folder), "TRITON_CACHE_DIR": str(own)}))
    assert loaded == len(list(folder.glob("*/*.cubin")))
    asked = re.compile(r"\['\S+/ptxas(-blackwell)?', '--version'\]|\['file', '-b', '\S+'\]")
    assert [program for program in programs if not asked.fullmatch(program)] == []
    assert not [path for path in own.rglob("*") if path.is_file()]


def test_steps_with_drafts_attend_by_kernels_that_are_compiled_ahead(model: Path, tmp_path: Path) -> None:
    made = fill(model, tmp_path, SpeculativeConfig("ngram", 3))
    assert made == len(list(tmp_path.glob("*/*.cubin")))
    assert len(list(tmp_path.glob("*/decode_kernel.cubin"))) == 3  # of rows of 1, of up to 2 and of up to 4 tokens


def test_a_folder_says_why_its_kernels_are_not_found(folder: Path) -> None:
    assert differences(folder) == []
    about = folder / "about.json"
    said = about.read_text()
    about.write_text(json.dumps(json.loads(said) | {"triton": "3.5.1"}))
    (why,) = differences(folder)
    about.write_text(said)
    assert why.startswith("triton is ")
    assert why.endswith(", not 3.5.1")


def test_the_module_that_calls_the_driver_is_not_that_of_another_triton(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder has one of its name, wherever the machine that made it has its libraries."""
    (name,) = (path.name for path in folder.glob("cuda_utils.*.so"))
    for variable, value in ((VARIABLE, folder), ("TRITON_CACHE_DIR", tmp_path)):
        monkeypatch.setenv(variable, str(value))
    found = PrecompiledCache("a digest").get_file
    assert found(name) == str(folder / name)
    assert found("about.json") is None
    about = folder / "about.json"
    said = about.read_text()
    about.write_text(json.dumps(json.loads(said) | {"triton": "3.5.1"}))
    assert found(name) is None
    about.write_text(said)


def test_fake_tensors_have_the_digests_of_real_ones_wherever_they_begin() -> None:
    digests: list[str] = []

    def run(rows: torch.Tensor, out: torch.Tensor) -> None:
        for offset in (0, 8, 1):
            launch(copied, (4,), rows.narrow(0, offset, 1024), out, 1024, config=Config.of(BLOCK=256))

    def made(*shape: int, device: str) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device=device)

    with compiling(CAPABILITY, lambda kernel, _: digests.append(kernel.hash)):
        for mode, device in ((FakeTensorMode(), "cuda"), (nullcontext(), "cpu")):
            with mode:
                run(made(1040, device=device), made(1024, device=device))
    fake, real = digests[:3], digests[3:]
    assert fake == real
    assert fake[0] == fake[1] != fake[2]


def test_block_sizes_are_those_of_the_gpu_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = table_path("a-gpu")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"an_operation": {"a key": {"BLOCK": 64, "num_warps": 8}}}))
    default = Config.of(BLOCK=16)
    with tuned_for("a-gpu"):
        assert pick("an_operation", "a key", default) == Config.of(BLOCK=64, num_warps=8)
    assert pick("an_operation", "a key", default) == default
