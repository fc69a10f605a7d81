"""Setting up on a device, a fake one: what is measured, what the KV cache gets, and what is told."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.model_config.spec.model import ModelSpec
from stentor.engine.sharing.lease import Member
from stentor.engine.worker.caches import kv_block_bytes
from stentor.engine.worker.device.device import MemoryReading
from stentor.engine.worker.device.graphs import graph_sizes
from stentor.engine.worker.errors import SetupError
from stentor.engine.worker.families.setup_parts import Setup
from stentor.engine.worker.setup import device as setup_device
from stentor.engine.worker.setup import setup as whole_setup
from stentor.engine.worker.setup.profile import worst_steps
from stentor.engine.worker.setup.setup import device_of_worker, set_up, set_up_on
from stentor.kernels import force_variant
from stentor.protocols.ipc.cache_groups import CacheGroup, HostSizes, group_of
from stentor.protocols.ipc.config import DraftMethod, SpeculativeConfig, WorkerConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowStep, StepPlan
from stentor.tests.engine.lease_child import NOTED
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.engine.test_lease import Members, line_of
from stentor.tests.engine.worker.fake_device import FakeDevice
from stentor.tests.kernels.test_moe_grouped import on_a_gpu
from stentor.tests.parity import hybrids, tiny

pytestmark = pytest.mark.usefixtures("one_thread")

MIB = 1 << 20
LOADED = 64 * MIB


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny.make("llama", folder)
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> ModelSpec:
    return open_checkpoint(folder).decoder


def _set_up(folder: Path, device: FakeDevice, **changes: Any) -> Setup:
    fields = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "kv_cache_memory": None, **changes}
    with force_variant("reference"):
        return set_up_on(model_config(folder, **fields), lambda *_: None, device)


def _device(**changes: Any) -> FakeDevice:
    return FakeDevice(**{"total": 1024 * MIB, "allocated": LOADED, "outside": 100 * MIB, **changes})


def test_the_cache_gets_what_the_worst_step_leaves_of_the_fraction(folder: Path, model: ModelSpec) -> None:
    device = _device(activations=200 * MIB, pool=30 * MIB, graph=2 * MIB)
    setup = _set_up(folder, device, gpu_memory_fraction=0.5)
    lines = {line.what: line.bytes for line in setup.ready.memory}
    assert lines["weights"] + lines["sampler tables"] == LOADED
    assert lines["activations"] == 200 * MIB
    graphs = 30 * MIB + 9 * 2 * 2 * MIB
    assert lines["CUDA graphs"] == graphs, "a pool, and two graphs for each size: 1, 2 and 4, and 0, 1 and 4 twice"
    assert lines["CUDA context and libraries"] == 100 * MIB
    block = kv_block_bytes(model.cache_groups, 16, torch.float32)
    budget = 512 * MIB - LOADED - 200 * MIB - graphs - 100 * MIB
    assert setup.ready.num_blocks == budget // block - 1, "one block is nobody's"
    assert lines["KV cache"] == budget // block * block
    assert lines["free"] == 1024 * MIB - sum(bytes_ for what, bytes_ in lines.items() if what != "free")


def test_what_loading_left_reserved_is_told_as_a_steps_and_not_as_weights(folder: Path) -> None:
    plain, spare = (_set_up(folder, _device(activations=200 * MIB, spare=each)).ready for each in (0, 150 * MIB))
    assert spare.memory == plain.memory, "a step takes what is reserved first"
    more = _set_up(folder, _device(activations=100 * MIB, spare=150 * MIB)).ready
    assert {line.what: line.bytes for line in more.memory}["activations"] == 150 * MIB


def test_models_that_share_a_device_share_its_fraction(folder: Path, model: ModelSpec) -> None:
    device = _device(activations=20 * MIB)
    setup = _set_up(folder, device, gpu_memory_fraction=0.5, memory_share=0.75, cuda_graphs=False)
    budget = 384 * MIB - LOADED - 20 * MIB - 100 * MIB
    assert setup.ready.num_blocks == budget // kv_block_bytes(model.cache_groups, 16, torch.float32) - 1
    with pytest.raises(SetupError, match=r"--gpu-memory-fraction 0.5 of the device leaves to its share of 0.25: raise"):
        _set_up(folder, device, gpu_memory_fraction=0.5, memory_share=0.25)


def test_what_a_model_beside_it_has_taken_is_not_held_against_one(
    folder: Path, model: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = Members([1, 1])
    try:
        child = others.start(1, "sets-up", 0.0)
        others.say(0, "go on")
        assert (line_of(child), line_of(child)) == ("begun", "noted")

        class Beside(FakeDevice):
            """Its reading is corrected as a real one's is."""

            def memory(self) -> MemoryReading:
                reading = super().memory()
                return replace(reading, free=reading.free + of_others[0]())

        of_others: list[Callable[[], int]] = []

        def device(_place: object, others_have: Callable[[], int]) -> FakeDevice:
            of_others.append(others_have)
            return Beside(total=1024 * MIB, allocated=LOADED, outside=100 * MIB + NOTED)

        monkeypatch.setattr(whole_setup, "choose_device", lambda _wanted: torch.device("cuda"))
        monkeypatch.setattr(whole_setup, "CudaDevice", device)
        config = model_config(
            folder,
            max_num_seqs=4,
            max_num_batched_tokens=32,
            kv_cache_memory=None,
            gpu_memory_fraction=0.5,
            cuda_graphs=False,
        )
        member = Member(others.fd, 0)
        with force_variant("reference"):
            setup = set_up(config, lambda *_: None, member=member)
        budget = 512 * MIB - LOADED - 100 * MIB
        assert setup.ready.num_blocks == budget // kv_block_bytes(model.cache_groups, 16, torch.float32) - 1
    finally:
        others.close()


def test_without_graphs_none_are_measured_and_none_reserved(folder: Path) -> None:
    device = _device(pool=30 * MIB, graph=2 * MIB)
    setup = _set_up(folder, device, cuda_graphs=False)
    assert device.graphs == []
    assert {line.what: line.bytes for line in setup.ready.memory}["CUDA graphs"] == 0


def test_an_operators_cache_is_taken_as_it_is(folder: Path, model: ModelSpec) -> None:
    block = kv_block_bytes(model.cache_groups, 16, torch.float32)
    setup = _set_up(folder, _device(), kv_cache_memory=9 * block + 1)
    assert setup.ready.num_blocks == 9
    assert setup.ready.max_model_len == 128


def test_the_host_tier_takes_nothing_of_the_device(folder: Path, model: ModelSpec) -> None:
    block = kv_block_bytes(model.cache_groups, 16, torch.float32)
    without, setup = (_set_up(folder, _device(), cuda_graphs=False, kv_offloading_size=size) for size in (None, MIB))
    assert setup.ready.num_blocks == without.ready.num_blocks
    assert setup.ready.host == HostSizes(MIB // block, block)
    (tier,) = [line for line in setup.ready.memory if line not in without.ready.memory]
    assert (tier.what, tier.bytes) == ("KV offload", MIB // block * block)


def test_every_kind_of_step_has_run_before_the_worker_is_ready(folder: Path) -> None:
    reported: list[tuple[str, int, int]] = []
    config = model_config(folder, max_num_seqs=4, max_num_batched_tokens=32, kv_cache_memory=None)
    with force_variant("reference"):
        set_up_on(config, lambda *progress: reported.append(progress), _device())
    phases = list(dict.fromkeys(phase for phase, _, _ in reported))
    assert phases == ["loading weights", "measuring memory", "preparing kernels", "warming up"]
    prepared = [(done, total) for phase, done, total in reported if phase == "preparing kernels"]
    assert len(prepared) > 20
    assert prepared == [(done, prepared[0][1]) for done in range(prepared[0][1] + 1)]


def test_the_peak_of_every_kind_of_step_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = _device(activations=200 * MIB)

    def warm_up(*_: object, adapted: bool) -> None:
        device.activations = 300 * MIB

    monkeypatch.setattr(setup_device, "warm_up", warm_up)
    lines = {line.what: line.bytes for line in _set_up(folder, device).ready.memory}
    assert lines["activations"] == 300 * MIB


def test_a_step_without_room_beside_the_cache_is_told_before_the_worker_is_ready(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_plans(*_: object) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(setup_device, "run_plans", run_plans)
    with pytest.raises(SetupError, match="no room for a step beside the KV cache: lower --kv-cache-memory"):
        _set_up(folder, _device())


def test_a_context_cut_to_the_cache_is_told(folder: Path, model: ModelSpec) -> None:
    block = kv_block_bytes(model.cache_groups, 16, torch.float32)
    ready = _set_up(folder, _device(), kv_cache_memory=3 * block).ready
    assert ready.max_model_len == 48
    assert any("cut from 128 tokens to the 48" in note for note in ready.notes)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hybrid")
    tiny.make_of(hybrids.configs(tiny.SHAPE)["granite4-hybrid"](), "granite4-hybrid", folder)
    return folder


def test_recurrent_states_are_taken_before_the_cache_gets_the_rest(hybrid: Path) -> None:
    spec = open_checkpoint(hybrid).decoder
    device = _device(activations=200 * MIB)
    setup = _set_up(hybrid, device, gpu_memory_fraction=0.5, cuda_graphs=False)
    assert setup.ahead is not None, "its steps are waited for"
    lines = {line.what: line.bytes for line in setup.ready.memory}
    each = spec.state_bytes(4, 4)
    states = group_of(setup.ready.groups, "state")
    assert states is not None
    assert states.capacity == 3 * 4 + 64
    assert lines["recurrent states"] == states.capacity * each
    budget = 512 * MIB - LOADED - 200 * MIB - 100 * MIB - lines["recurrent states"]
    assert setup.ready.num_blocks == budget // kv_block_bytes(spec.cache_groups, 16, torch.float32) - 1
    assert lines["free"] == 1024 * MIB - sum(bytes_ for what, bytes_ in lines.items() if what != "free")


def test_a_model_of_recurrent_layers_alone_gets_states_and_no_kv_cache(tmp_path: Path) -> None:
    tiny.make_of(hybrids.configs(tiny.SHAPE)["mamba2"](), "mamba2", tmp_path)
    each = open_checkpoint(tmp_path).decoder.state_bytes(4, 4)
    ready = _set_up(tmp_path, _device(), cuda_graphs=False, kv_cache_memory=6 * each, max_model_len=100).ready
    assert [(group.kind, group.capacity) for group in ready.groups] == [("state", 6)]
    assert ready.limits.max_num_seqs == 3
    assert (ready.max_model_len, ready.num_blocks) == (100, 4 * 7)
    assert "KV cache" not in {line.what for line in ready.memory}


def test_as_many_sequences_run_at_once_as_have_room_for_their_states(hybrid: Path) -> None:
    each = open_checkpoint(hybrid).decoder.state_bytes(4, 4)
    device = _device()
    setup = _set_up(hybrid, device, kv_cache_memory=2 * 6 * each + 9, max_num_seqs=8, cuda_graph_sizes=(2, 5))
    assert CacheGroup("state", capacity=6) in setup.ready.groups
    assert setup.ready.limits.max_num_seqs == 3
    assert any("3 of 8 sequences run at once" in note for note in setup.ready.notes)
    assert setup.ahead is not None
    with force_variant("reference"):
        while setup.ahead.advance(busy=False) is not None:
            pass
    assert [size.decodes for size in setup.ahead.captured if not size.prompt_tokens] == [2, 3]
    assert {size.decodes for size in setup.ahead.captured if size.prompt_tokens} == {0, 2, 3}


@pytest.mark.parametrize(
    ("device", "changes", "why"),
    [
        ({"activations": 1000 * MIB}, {}, r"needs .* MiB more than --gpu-memory-fraction 0.9 of the device leaves"),
        ({}, {"gpu_memory_fraction": 1.5}, r"--gpu-memory-fraction 1.5: expected more than 0 and at most 1"),
        ({}, {"cuda_graph_sizes": (2, 9)}, r"--cuda-graph-sizes 9: expected 1 to the 4 rows"),
        ({}, {"block_size": 24}, r"--block-size 24: expected a multiple of 16"),
        ({}, {"kv_cache_memory": 1}, "hold 0 tokens"),
        ({}, {"kv_cache_memory": 1000 * MIB}, r"--kv-cache-memory: 1000.0 MiB do not fit, .* leave 8\d\d.\d MiB"),
    ],
)
def test_what_cannot_be_is_one_line(folder: Path, device: dict[str, Any], changes: dict[str, Any], why: str) -> None:
    with pytest.raises(SetupError, match=why):
        _set_up(folder, _device(**device), **changes)


def test_the_sizes_of_graphs_are_those_asked_for() -> None:
    def decodes(**fields: Any) -> list[int]:
        return [size.decodes for size in graph_sizes(WorkerConfig("", **fields)) if not size.prompt_tokens]

    assert decodes(max_num_seqs=8, cuda_graph_sizes=(8, 2, 8)) == [8, 2]
    assert decodes(cuda_graphs=False) == []
    assert decodes(max_num_seqs=5, max_num_batched_tokens=64) == [1, 2, 4, 5]
    config = WorkerConfig("", max_num_seqs=5, max_num_batched_tokens=64, cuda_graph_prompt_tokens=0)
    assert {size.prompt_tokens for size in graph_sizes(config)} == {0}


@pytest.mark.parametrize(
    ("slots", "tokens", "length"), [(4, 32, 128), (8, 64, 16), (8, 4, 128), (2, 512, 128), (1, 8, 8)]
)
def test_the_worst_step_is_as_large_as_a_step_may_be(slots: int, tokens: int, length: int) -> None:
    (plan,) = worst_steps(slots, tokens, length, 320)
    assert len(plan.rows) == min(slots, tokens)
    assert sum(row.count for row in plan.rows) == min(tokens, slots * length)
    assert all(row.sample and row.count >= 1 for row in plan.rows)
    assert max(row.start + row.count for row in plan.rows) == length
    assert all(new.params.logprobs and new.params.prompt_logprobs for new in plan.new)
    assert all(row.start + row.count == len(new.tokens) for row, new in zip(plan.rows, plan.new, strict=True))


@pytest.mark.parametrize("which", ["folder", "hybrid"])
def test_the_device_draws_what_the_host_draws_from_the_same_checkpoint(
    which: str, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(which)
    runner = _set_up(folder, _device()).runner
    host = LocalEngine(model_config(folder)).runner
    params = SamplingParams(max_tokens=5, temperature=0.0)
    new = NewRow(1, list(range(5, 45)), 40, params, 3, [2, 0, 1])
    steps = [RowStep(1, 0, 30, [], False, state=3), RowStep(1, 30, 10, [], True), RowStep(1, 40, 1, [], True, state=0)]
    for number, step in enumerate(steps):
        plan = StepPlan(0, number, [], [new] if number == 0 else [], [step])
        with force_variant("reference"):
            assert runner.step(plan).tokens == host.step(plan).tokens


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_steps_of_a_device_with_drafts_are_waited_for_and_draw_what_those_without_draw(
    folder: Path, hybrid: Path, method: DraftMethod
) -> None:
    """With few tokens to choose from."""
    target, own = (hybrid, "") if method == "ngram" else (folder, str(folder))
    speculative = SpeculativeConfig(method, 3, model=own)
    config = model_config(target, max_num_seqs=4, max_num_batched_tokens=32, speculative=speculative)
    setup = _set_up(target, _device(), speculative=speculative)
    assert setup.ahead is None
    params = SamplingParams(max_tokens=30, temperature=0.0, allowed_token_ids=(5, 9, 70))
    with force_variant("reference"):
        drafting = LocalEngine(config, setup)
        assert drafting.generate(list(range(5, 25)), params) == LocalEngine(model_config(target)).generate(
            list(range(5, 25)), params
        )
    assert drafting.scheduler.stats().num_accepted_tokens > 0


def test_ranks_settle_for_what_the_least_has_room_for_and_all_draw_what_the_first_draws(folder: Path) -> None:
    plans = [
        StepPlan(0, 0, [], [NewRow(0, [5] * 20, 20, SamplingParams(max_tokens=9), 7, [0, 1])], [_whole(20)]),
        *(StepPlan(0, 1 + at, [], [], [RowStep(0, 20 + at, 1, [], True)]) for at in range(6)),
    ]
    meeting = os.memfd_create("ranks")

    @force_variant("reference")
    def run(rank: int, size: int, outside: int) -> tuple[Setup, list[int]]:
        fields = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "kv_cache_memory": None}
        config = model_config(folder, tensor_parallel_size=size, rank=rank, **fields)
        joins = {"meeting_fd": meeting} if size > 1 else {}
        setup = set_up_on(config, lambda *_: None, _device(outside=outside * MIB), **joins)
        return setup, [token for plan in plans for token in setup.runner.step(plan).tokens]

    try:
        with ThreadPoolExecutor(2) as threads:
            (first, tokens), (second, theirs) = threads.map(run, (0, 1), (2, 2), (100, 200))
    finally:
        os.close(meeting)
    alone, expected = run(0, 1, 200)
    assert tokens == theirs == expected
    assert first.ahead is not None
    assert first.ready.num_blocks == second.ready.num_blocks
    assert first.ready.num_blocks // 2 == pytest.approx(alone.ready.num_blocks, abs=1)
    assert not first.ahead.captured


def _whole(count: int) -> RowStep:
    return RowStep(0, 0, count, [], True)


def test_each_worker_has_a_device_of_its_own() -> None:
    split = WorkerConfig("", tensor_parallel_size=2, rank=1)
    assert device_of_worker(split, 2) == torch.device("cuda", 1)
    copied = WorkerConfig("", tensor_parallel_size=2, data_parallel_size=3, replica=2, rank=1)
    assert device_of_worker(copied, 6) == torch.device("cuda", 5)
    with pytest.raises(SetupError, match="--tensor-parallel-size 2: torch sees 1 CUDA devices here"):
        device_of_worker(split, 1)
    with pytest.raises(SetupError, match="--tensor-parallel-size 2 --data-parallel-size 3: torch sees 5"):
        device_of_worker(copied, 5)


@pytest.mark.parametrize(
    ("architecture", "changes", "why"),
    [
        ("deepseek-v3", {}, "attend to keys and values"),
        ("qwen3-next", {}, "attend to keys and values"),
        ("llama", {"enable_lora": True}, "adapters"),
    ],
)
def test_batch_invariance_is_refused_where_a_device_does_not_have_it(
    architecture: str, changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    if architecture == "qwen3-next":
        tiny.make_of(hybrids.configs(tiny.SHAPE)[architecture](), architecture, tmp_path)
    else:
        tiny.make(architecture, tmp_path)
    with pytest.raises(SetupError, match=f"--batch-invariant: .*{why}"):
        _set_up(tmp_path, _device(), batch_invariant=True, **changes)


def test_a_batch_invariant_worker_gets_ready_on_a_device(folder: Path) -> None:
    setup = _set_up(folder, _device(), batch_invariant=True, kv_cache_memory=4 * MIB)
    assert setup.ahead is not None


def test_who_attends_whole_prompts_is_told_once_for_each_kind_of_layer(
    model: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_gpu(monkeypatch, 90)
    windowed = replace(model.layers[0], mixer=replace(model.layers[0].attention, window=16))
    mixed = replace(model, layers=(*model.layers, windowed, windowed))

    def told(place: str) -> list[str]:
        bf16 = torch.bfloat16
        return setup_device.attention_notes(WorkerConfig(""), mixed, bf16, bf16, torch.device(place))

    ours = "whole prompts run on this server's kernels (Triton); cuDNN's attention does not run: "
    assert told("cuda") == [
        f"{ours}stentor tune has not found it faster on this GPU",
        f"{ours}it does not take windows",
    ]
    assert told("cpu") == []
