"""What a worker makes of its configuration, and how it says that it cannot."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.model_config.spec.model import ModelSpec
from stentor.engine.quantization.formats import (
    Format,
    FP4Format,
    FP8Format,
    GGUFFormat,
    Int4Format,
    QuantizationRule,
    QuantizedCheckpoint,
)
from stentor.engine.sharing.cpu_plan import CpuPlan
from stentor.engine.sharing.cpu_topology import Cpu, CpuTopology
from stentor.engine.sharing.lease import create_lease, peek
from stentor.engine.worker import memory
from stentor.engine.worker.caches import allocate_caches, cache_tensors, choose_cache_dtype, kv_block_bytes
from stentor.engine.worker.errors import SetupError
from stentor.engine.worker.families import setup_parts
from stentor.engine.worker.families.family import size_cache
from stentor.engine.worker.families.setup_parts import cache_note, choose_dtype, hold, longest_of, multiplied_from_codes
from stentor.engine.worker.memory import available_memory, format_bytes
from stentor.engine.worker.service import Worker
from stentor.engine.worker.setup import decoder
from stentor.engine.worker.setup.setup import choose_device, set_up
from stentor.kernels import native
from stentor.protocols.ipc.actors import Failed, Progress, Shutdown, StartWorker, WorkerReady
from stentor.protocols.ipc.codec import decode_engine_worker, encoder
from stentor.protocols.ipc.config import WorkerConfig
from stentor.protocols.ipc.steps import RowStep, StepPlan
from stentor.tests.engine.channel.harness import both_ends
from stentor.tests.engine.local import model_config
from stentor.tests.engine.machines import write_files
from stentor.tests.parity import tiny

CPU = torch.device("cpu")
F32 = torch.float32
PLACE = LayerContext(CPU, F32, False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny.make("llama", folder)
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> ModelSpec:
    return open_checkpoint(folder, "auto").decoder


def _size(model: ModelSpec, blocks: float, **changes: Any) -> tuple[int, int]:
    """With a cache of that many blocks."""
    config = WorkerConfig("", block_size=16, kv_cache_memory=int(blocks * kv_block_bytes(model.cache_groups, 16, F32)))
    config = msgspec.structs.replace(config, **changes)
    sizes = size_cache(config, model.cache_groups, longest_of(config, model), F32, config.kv_cache_memory or 0)
    return sizes.max_model_len, sizes.blocks


# ---- the cache


def test_a_block_of_the_cache_holds_keys_and_values_of_every_layer(model: ModelSpec) -> None:
    assert kv_block_bytes(model.cache_groups, 16, F32) == 2 * 3 * 2 * 16 * 16 * 4
    assert kv_block_bytes(model.cache_groups, 16, torch.bfloat16) == 2 * 3 * 2 * 16 * 16 * 2


def test_the_models_own_context_is_cut_to_what_fits(model: ModelSpec) -> None:
    assert model.max_position == 128
    assert _size(model, 100) == (128, 100)
    assert _size(model, 8) == (128, 8)
    assert _size(model, 7.9) == (112, 7)
    assert _size(model, 1) == (16, 1)


def test_a_context_that_the_operator_named_must_fit(model: ModelSpec) -> None:
    assert _size(model, 7, max_model_len=100) == (100, 7)
    held, needed = (format_bytes(blocks * kv_block_bytes(model.cache_groups, 16, F32)) for blocks in (6, 7))
    why = f"{held} of KV cache hold 96 tokens, .* needs {needed}: raise --kv-cache-memory or lower --max-model-len"
    assert held.endswith("KiB")
    with pytest.raises(SetupError, match=why):
        _size(model, 6, max_model_len=100)
    with pytest.raises(SetupError, match="lower --transcription-max-model-len"):
        _size(model, 6, max_model_len=100, name="transcription")
    with pytest.raises(SetupError, match=r"^--transcription-max-model-len 129: "):
        _size(model, 9, max_model_len=129, name="transcription")


def test_a_cache_without_room_for_one_block_is_refused(model: ModelSpec) -> None:
    for blocks in (0, 0.9):
        with pytest.raises(SetupError, match="hold 0 tokens"):
            _size(model, blocks)


def test_blocks_beyond_what_the_sequences_can_fill_stay_for_cached_prefixes(model: ModelSpec) -> None:
    assert _size(model, 1000, max_num_seqs=3, max_model_len=17) == (17, 1000)


def test_a_context_beyond_the_models_own_is_refused(model: ModelSpec) -> None:
    with pytest.raises(SetupError, match=r"--max-model-len 129: .* at most 128"):
        _size(model, 100, max_model_len=129)


def test_a_block_size_that_kernels_cannot_use_is_refused(model: ModelSpec) -> None:
    with pytest.raises(SetupError, match="--block-size 20: expected a multiple of 16"):
        _size(model, 100, block_size=20)


def test_the_default_cache_leaves_room_for_the_weights(
    model: ModelSpec, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = model_config(folder, kv_cache_memory=None)
    weights = next(line.bytes for line in set_up(config, _ignore).ready.memory if line.what == "weights")
    stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    assert weights == pytest.approx(stored, rel=0.05)
    block = kv_block_bytes(model.cache_groups, 16, F32)
    monkeypatch.setattr(memory, "available_memory", lambda: weights + 4 * 10 * block)
    assert set_up(config, _ignore).ready.num_blocks == 10
    monkeypatch.setattr(memory, "available_memory", lambda: weights - 1)
    with pytest.raises(SetupError, match="hold 0 tokens"):
        set_up(config, _ignore)


def test_a_cache_larger_than_the_memory_limit_is_refused_at_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder, "memory_limit", lambda: 32 << 20)
    set_up(model_config(folder, kv_cache_memory=32 << 20), _ignore)
    why = r"--kv-cache-memory: 32.0 MiB are more than the 32.0 MiB of this .*: lower it, or raise the memory limit"
    with pytest.raises(SetupError, match=why):
        set_up(model_config(folder, kv_cache_memory=(32 << 20) + 1), _ignore)
    with pytest.raises(SetupError, match=r"16\.0 MiB for each of 3 workers are more than the 32\.0 MiB"):
        decoder._check_kv_bytes(16 << 20, 0, 3)


def test_a_cache_that_fits_only_without_the_weights_is_told_at_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = model_config(folder, kv_cache_memory=8 << 20)
    weights = next(line.bytes for line in set_up(config, _ignore).ready.memory if line.what == "weights")
    monkeypatch.setattr(decoder, "available_memory", lambda: weights + (8 << 20))
    set_up(config, _ignore)
    assert not caplog.records
    monkeypatch.setattr(decoder, "available_memory", lambda: weights + (8 << 20) - 1)
    set_up(config, _ignore)
    (line,) = caplog.messages
    assert line.startswith(f"--kv-cache-memory: 8.0 MiB may not fit beside {format_bytes(weights)} that are still")
    assert f"the limit is {format_bytes(memory.memory_limit())}; workers are killed when the cache fills" in line


MEMORY = "sys/fs/cgroup/memory"
"""The first part of names of version 2's files at the mount, and the folder of version 1's."""


def test_a_containers_limit_counts_and_its_page_cache_does_not(tmp_path: Path) -> None:
    write_files(tmp_path, {"proc/meminfo": "MemTotal: 8 kB\nMemAvailable:   5 kB", "proc/self/cgroup": "0::/"})
    assert available_memory(tmp_path) == 5 * 1024
    write_files(tmp_path, {f"{MEMORY}.max": "max", f"{MEMORY}.current": "900"})
    assert available_memory(tmp_path) == 5 * 1024
    write_files(tmp_path, {f"{MEMORY}.max": "1000"})
    assert available_memory(tmp_path) == 100
    write_files(tmp_path, {f"{MEMORY}.stat": "anon 300\ninactive_file 250\nactive_file 50"})
    assert available_memory(tmp_path) == 350
    write_files(tmp_path, {f"{MEMORY}.current": "5000"})
    assert available_memory(tmp_path) == 0


def test_the_limit_of_cgroup_v1_counts_too(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemAvailable:   5 kB",
        "proc/self/cgroup": "5:cpu,cpuacct:/other\n4:memory:/a-path-of-the-host",
        f"{MEMORY}/memory.limit_in_bytes": "9223372036854771712",  # none
        f"{MEMORY}/memory.usage_in_bytes": "900",
        f"{MEMORY}/memory.stat": "inactive_file 1\ntotal_cache 300\ntotal_inactive_file 250",
    }
    write_files(tmp_path, files)
    assert available_memory(tmp_path) == 5 * 1024
    write_files(tmp_path, {f"{MEMORY}/memory.limit_in_bytes": "1000"})
    assert available_memory(tmp_path) == 350


def test_the_limit_of_a_systemd_unit_and_of_its_slice_counts(tmp_path: Path) -> None:
    unit = "sys/fs/cgroup/system.slice/stentor.service"
    files = {
        "proc/meminfo": "MemAvailable:   5 kB",
        "proc/self/cgroup": "0::/system.slice/stentor.service",
        f"{unit}/memory.max": "1000",
        f"{unit}/memory.current": "400",
    }
    write_files(tmp_path, files)
    assert available_memory(tmp_path) == 600
    write_files(tmp_path, {f"{unit}/../memory.max": "2000", f"{unit}/../memory.current": "1900"})
    assert available_memory(tmp_path) == 100


# ---- dtype and device


def test_batch_invariance_is_float32_on_the_cpu() -> None:
    assert choose_dtype("auto", CPU, "bfloat16", batch_invariant=True) == F32
    assert choose_dtype("float32", CPU, "bfloat16", batch_invariant=True) == F32
    with pytest.raises(SetupError, match="--batch-invariant"):
        choose_dtype("bfloat16", CPU, "bfloat16", batch_invariant=True)
    assert choose_dtype("auto", torch.device("cuda"), "bfloat16", batch_invariant=True) == torch.bfloat16


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_a_named_dtype_is_taken(name: Any) -> None:
    assert choose_dtype(name, CPU, "float32", batch_invariant=False) == getattr(torch, name)


@pytest.mark.parametrize("multiplies", [True, False])
def test_auto_is_bfloat16_only_where_the_cpu_multiplies_it(monkeypatch: pytest.MonkeyPatch, multiplies: bool) -> None:
    monkeypatch.setattr(setup_parts, "multiplies_bfloat16", lambda: multiplies)
    expected = torch.bfloat16 if multiplies else F32
    assert choose_dtype("auto", CPU, "float32", batch_invariant=False) == expected


@pytest.mark.parametrize(
    ("format", "expected"),
    [
        (GGUFFormat("Q4_0"), True),
        (GGUFFormat("Q2_K"), False),
        (Int4Format("awq", 128, symmetric=False), True),
        (Int4Format("gptq", 128, symmetric=True, act_order=True), False),
        (FP4Format("nvfp4", "modelopt"), True),
        (FP8Format("block"), False),
    ],
)
def test_auto_is_bfloat16_where_the_cpu_multiplies_from_codes(
    monkeypatch: pytest.MonkeyPatch, format: Format, expected: bool
) -> None:
    monkeypatch.setattr(setup_parts, "multiplies_bfloat16", lambda: False)
    by_rule = QuantizedCheckpoint("any", rules=(QuantizationRule(("Linear",), format),))
    by_part = QuantizedCheckpoint("gguf", parts={"a": format, "b": format, "c": GGUFFormat("Q5_K")})
    for stored in (by_rule, by_part):
        from_codes = multiplied_from_codes(stored)
        assert from_codes == expected
        dtype = choose_dtype("auto", CPU, "bfloat16", batch_invariant=False, from_codes=from_codes)
        assert dtype == (torch.bfloat16 if expected else F32)
    assert not multiplied_from_codes(None)


def test_auto_on_cuda_keeps_float16_and_else_takes_bfloat16() -> None:
    cuda = torch.device("cuda")
    assert choose_dtype("auto", cuda, "float16", batch_invariant=False) == torch.float16
    assert choose_dtype("auto", cuda, "float32", batch_invariant=False) == torch.bfloat16


def test_a_cache_is_of_the_models_dtype_or_of_float8() -> None:
    assert choose_cache_dtype("auto", torch.bfloat16, CPU) == torch.bfloat16
    assert choose_cache_dtype("float16", torch.float16, CPU) == torch.float16
    assert choose_cache_dtype("fp8", F32, CPU) == torch.float8_e4m3fn
    assert choose_cache_dtype("int8", torch.bfloat16, CPU) == torch.int8
    with pytest.raises(SetupError, match="int8 is for CPUs: use --kv-cache-dtype fp8, which takes as many bytes"):
        choose_cache_dtype("int8", torch.bfloat16, torch.device("cuda"))
    with pytest.raises(SetupError, match=r"--kv-cache-dtype bfloat16: the model computes in float32; use auto, "):
        choose_cache_dtype("bfloat16", F32, CPU)


def test_a_cache_of_float8_takes_a_quarter_of_one_of_float32(model: ModelSpec) -> None:
    (cache, *_) = allocate_caches(model.cache_groups, 3, 16, CPU, torch.float8_e4m3fn)
    assert cache.k.dtype == cache.v.dtype == torch.float8_e4m3fn
    ones = torch.ones(2), torch.ones(2)
    assert cache.scales(ones) is ones
    assert kv_block_bytes(model.cache_groups, 16, cache.k.dtype) * 4 == kv_block_bytes(model.cache_groups, 16, F32)


def test_a_cache_of_int8_has_a_scale_of_each_token_and_head(model: ModelSpec) -> None:
    caches = allocate_caches(model.cache_groups, 3, 16, CPU, torch.int8)
    ones = torch.ones(2), torch.ones(2)
    k_scale, v_scale = caches[0].scales(ones)
    assert k_scale is not None
    assert v_scale is not None
    assert k_scale.shape == v_scale.shape == (3, 2, 16)
    assert k_scale.dtype == v_scale.dtype == F32
    nbytes = sum(tensor.nbytes for tensor in cache_tensors(caches))
    assert nbytes == 3 * kv_block_bytes(model.cache_groups, 16, torch.int8)
    (plain, *_) = allocate_caches(model.cache_groups, 3, 16, CPU, F32)
    assert plain.scales(ones) == (None, None)


def test_cuda_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SetupError, match=r"--device cuda: .* use --device cpu"):
        choose_device("cuda")
    assert choose_device("auto") == CPU


# ---- the whole


def _ignore(_phase: str, _done: int, _total: int) -> None:
    pass


def test_a_cache_that_the_machine_cannot_give_is_one_clear_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "memory_limit", lambda: 1 << 61)
    config = model_config(folder, kv_cache_memory=1 << 60, max_num_seqs=1 << 40)
    with pytest.raises(SetupError, match=r"cpu has no room for .*iB of KV cache: lower --kv-cache-memory"):
        set_up(config, _ignore)


@pytest.mark.parametrize("length", [1, 2, 16])
def test_the_shortest_contexts_complete_a_step(folder: Path, length: int) -> None:
    ready = set_up(model_config(folder, max_model_len=length), _ignore).ready
    assert ready.max_model_len == length


def test_a_context_cut_to_the_cache_is_told(folder: Path, model: ModelSpec) -> None:
    cache = 3 * kv_block_bytes(model.cache_groups, 16, F32)
    ready = set_up(model_config(folder, kv_cache_memory=cache), _ignore).ready
    assert ready.max_model_len == 48
    assert any("cut from 128 tokens to the 48" in note for note in ready.notes)
    assert not any("cut from" in note for note in set_up(model_config(folder), _ignore).ready.notes)


@pytest.mark.parametrize(("changes", "tokens"), [({}, 512), ({"max_prefill_chunk": 64}, 64)])
def test_prompts_that_begin_in_one_step_on_a_cpu_are_as_long_as_a_chunk(
    folder: Path, changes: dict[str, Any], tokens: int
) -> None:
    limits = set_up(model_config(folder, **changes), _ignore).ready.limits
    assert (limits.max_admitted_tokens, limits.max_prefill_chunk) == (tokens, tokens)


def test_the_cache_costs_nothing_until_it_is_used(folder: Path) -> None:
    before = memory.resident_bytes()
    made = allocate_caches(open_checkpoint(folder, "auto").decoder.cache_groups, 100_000, 16, CPU, F32)
    assert sum(cache.k.nbytes + cache.v.nbytes for cache in made) > 1 << 30
    assert memory.resident_bytes() - before < 64 << 20
    assert not made[0].k[-1].any()


# ---- what the worker tells its engine


def _conversation(*messages: StartWorker | StepPlan | Shutdown, lease: int | None = None) -> tuple[int, list[Any]]:
    """The worker's exit code and what it sent, progress left out."""
    with both_ends() as (engine, worker):
        for message in messages:
            assert engine.try_send(encoder.encode(message))
        code = Worker(worker, lease_fd=lease).run()
        received = [decode_engine_worker.decode(frame) for frame in engine.try_receive()]
    return code, [message for message in received if not isinstance(message, Progress)]


def test_a_worker_gets_ready_and_ends_when_told_to(folder: Path) -> None:
    code, (ready,) = _conversation(StartWorker(model_config(folder)), Shutdown())
    assert code == 0
    assert isinstance(ready, WorkerReady)
    assert {line.what for line in ready.memory} == {"weights", "KV cache", "worker process"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": "/nowhere"}, "/nowhere"),
        ({"block_size": 20}, "--block-size 20"),
        ({"max_model_len": 4096}, "--max-model-len 4096"),
        ({"batch_invariant": True, "dtype": "float16"}, "--batch-invariant"),
    ],
)
def test_what_an_operator_can_put_right_is_one_line_and_no_traceback(
    folder: Path, changes: dict[str, Any], why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    code, (failed,) = _conversation(StartWorker(msgspec.structs.replace(model_config(folder), **changes)))
    assert code == 1
    assert isinstance(failed, Failed)
    assert why in failed.message
    assert "\n" not in failed.message
    assert "Traceback" not in capfd.readouterr().err


def test_a_missing_tensor_is_told_with_its_folder_and_what_to_do(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    _, (failed,) = _conversation(StartWorker(model_config(tmp_path)))
    lacking = "the checkpoint lacks model.norm.weight; fetch it again, or check its configuration"
    assert failed == Failed(f"Cannot load {tmp_path}: {lacking}")


def test_a_step_that_fails_ends_the_worker_with_one_line(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plan = StepPlan(0, 4, [], [], [RowStep(3, 0, 1, [], True)])  # of a row that never entered
    code, (_, failed) = _conversation(StartWorker(model_config(folder)), plan)
    assert code == 1
    assert failed == Failed("the worker failed in step 4: ValueError")
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.parametrize("sockets", [1, 2])
def test_models_on_a_socket_each_take_no_turns(folder: Path, sockets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    usable = min(os.sched_getaffinity(0))
    second = [Cpu(usable + 1, usable + 1, 1, 1, 1.0)] * (sockets - 1)
    topology = CpuTopology((Cpu(usable, usable, 0, 0, 1.0), *second))
    monkeypatch.setattr(setup_parts, "read_topology", lambda: topology)
    lease = create_lease([1, 1])
    try:
        config = model_config(folder, cpu_places=2)
        step = StepPlan(0, 4, [], [], [RowStep(3, 0, 1, [], True)])  # fails, and leaves held what it has taken
        _, (ready, _) = _conversation(StartWorker(config), step, lease=lease)
        held = peek(lease)[0].holds
    finally:
        os.close(lease)
    assert held == (sockets == 1)
    where = f"1 thread on CPUs {usable}: one for each of 1 core, socket 1 of 2" if sockets == 2 else "1 thread"
    assert any(note.startswith(f"computes with {where}") for note in ready.notes)
    if sockets == 2:
        assert os.sched_getaffinity(0) == {usable}


def test_a_sandbox_that_forbids_to_be_held_leaves_the_worker_where_it_may_run() -> None:
    plan = CpuPlan(1, frozenset({10_000}), True, ())  # there is no such CPU
    assert hold(plan) == CpuPlan(1, None, False, ())


def test_a_worker_is_tied_to_its_owner_before_it_imports_torch() -> None:
    code = "import sys, stentor.engine.worker.process; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], timeout=60, check=False).returncode == 0


def test_scales_of_a_float8_cache_that_lie_unused_are_told(folder: Path) -> None:
    plain = open_checkpoint(folder, "auto")
    scaled = replace(plain, quantized=QuantizedCheckpoint("modelopt", kv_cache_fp8=True))
    (note,) = cache_note(scaled, F32)
    assert "--kv-cache-dtype fp8" in note
    assert cache_note(scaled, torch.float8_e4m3fn) == cache_note(plain, F32) == []


@pytest.mark.skipif(native.library() is None, reason="no native library")
def test_start_up_says_what_the_pass_leaves_its_program_for(folder: Path, tmp_path: Path) -> None:
    tiny.make("cohere-normed", tmp_path)
    notes = set_up(model_config(tmp_path), _ignore).ready.notes
    assert "the pass leaves its program 3 times a step, slower, for attention with layer norms of heads" in notes
    assert not any("leaves its program" in note for note in set_up(model_config(folder), _ignore).ready.notes)
