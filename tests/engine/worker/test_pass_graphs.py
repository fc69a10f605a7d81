"""Steps with drafts as graphs, on a fake device, beside the same steps without: under a real scheduler."""

import importlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.weights import iterate_weights
from stentor.engine.models.decoder import Decoder
from stentor.engine.worker.caches import allocate_caches, block_groups_of, cache_tensors
from stentor.engine.worker.compute.executor import SyncExecutor
from stentor.engine.worker.compute.sync_compute import SyncCompute
from stentor.engine.worker.device.graphs import GraphCapture, GraphSize, draft_sizes
from stentor.engine.worker.passes.model_pass import ModelPass
from stentor.engine.worker.passes.pass_graphs import PassGraphs, advance_all
from stentor.engine.worker.rows.rows import RowTable
from stentor.engine.worker.setup.setup import set_up_on
from stentor.kernels import force_variant
from stentor.kernels.variants import Variant
from stentor.protocols.ipc.actors import Failed
from stentor.protocols.ipc.config import SpeculativeConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import Masks, NewRow, RowStep, StepPlan, StepResult
from stentor.tests.engine.local import LocalEngine, Outcome, model_config
from stentor.tests.engine.worker.fake_device import FakeDevice
from stentor.tests.engine.worker.test_draft_heads import Made
from stentor.tests.engine.worker.test_speculation import CONTEXT, WAYS, Ask, _asks, _prompt, _run, _with_oracle
from stentor.tests.parity import hybrids, tiny

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
BLOCK = 16
NGRAM = SpeculativeConfig("ngram", 3)


class DeviceEngine(LocalEngine):
    """A worker on a fake device, all graphs of which are captured."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.device = FakeDevice()
        fields = {"max_model_len": CONTEXT, "max_num_seqs": 8, "speculative": NGRAM, **changes}
        config = model_config(folder, **fields)
        with force_variant("reference"):
            super().__init__(config, set_up_on(config, lambda *_: None, self.device))
            assert isinstance(self.runner.compute, SyncCompute)
            while advance_all(self.runner.compute.graphs, busy=False) is not None:
                pass

    def run(self, **options: Any) -> None:
        with force_variant("reference"):
            super().run(**options)

    def restart(self, *args: Any, **options: Any) -> None:
        """A draft model computes what rows that leave lack."""
        with force_variant("reference"):
            super().restart(*args, **options)

    @property
    def replays(self) -> int:
        return sum(graph.replays for graph in self.device.graphs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny.make("llama", folder, layers=2)
    return folder


@pytest.fixture(scope="module")
def graphs(folder: Path) -> DeviceEngine:
    return DeviceEngine(folder)


@pytest.fixture(scope="module")
def eager(folder: Path) -> DeviceEngine:
    return DeviceEngine(folder, cuda_graphs=False)


def _same(found: Sequence[Outcome], expected: Sequence[Outcome]) -> None:
    """Log-probabilities to rounding, which depends on the number of rows in a product."""
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.tokens == theirs.tokens
        assert ours.finished is not None
        assert theirs.finished is not None
        assert (ours.finished.reason, ours.finished.stop_token) == (theirs.finished.reason, theirs.finished.stop_token)
        said, known = ([entry.logprob for entry in outcome.logprobs] for outcome in (ours, theirs))
        assert said == pytest.approx(known, abs=1e-4)


def test_a_size_is_a_number_of_tokens_however_rows_share_them(folder: Path) -> None:
    config = model_config(folder, max_num_seqs=64, max_num_batched_tokens=2048, speculative=NGRAM)
    sizes = draft_sizes(config)
    assert sizes[0] == GraphSize(256, query_len=4), "64 rows of 4 tokens, the most that padding costs little for"
    assert len(sizes) == 35
    assert [size.tokens for size in sizes[1:6]] == [1, 2, 4, 8, 16]


@pytest.mark.parametrize("way", WAYS)
def test_rows_draw_in_graphs_what_they_draw_without(way: str, graphs: DeviceEngine, eager: DeviceEngine) -> None:
    expected = _run(eager, _asks(way))
    assert eager.device.graphs == []
    replays, steps = graphs.replays, graphs.steps
    oracle = _with_oracle(graphs, _asks(way), expected, 0.3)
    _same(_run(graphs, _asks(way)), expected)
    assert graphs.replays - replays > 0.8 * (graphs.steps - steps)
    assert 0 < oracle.accepted < oracle.drafted


def _many(seed: int) -> list[Ask]:
    """Requests that overlap, with prompts that repeat themselves, so that drafts are right now and then."""
    rng = random.Random(seed)
    asks: list[Ask] = []
    for number in range(14):
        prompt = _prompt(rng.randrange(3, 9), number % 4) * rng.randrange(1, 5)
        params = SamplingParams(max_tokens=rng.randrange(4, 30), **WAYS[rng.choice(list(WAYS))])
        grammar = rng.choice((None, None, number))
        asks.append((prompt, params, [rng.getrandbits(64) for _ in range(rng.choice((1, 1, 2)))], grammar))
    return asks


@pytest.mark.parametrize("blocks", [0, 6])
def test_rows_with_grammars_and_rows_that_are_preempted_draw_the_same_too(
    blocks: int, graphs: DeviceEngine, eager: DeviceEngine
) -> None:
    expected = _run(eager, _many(blocks))
    oracle = _with_oracle(graphs, _many(blocks), expected, 0.3)
    _same(_run(graphs, _many(blocks), blocks=blocks), expected)
    assert (graphs.scheduler.stats().preemptions > 0) == bool(blocks)
    assert oracle.accepted > 0


def test_rows_that_are_recovered_draw_the_same_too(graphs: DeviceEngine, eager: DeviceEngine) -> None:
    deaths = iter([False] * 9 + [True] + [False] * 7 + [True])
    dies: Callable[[], bool] = lambda: next(deaths, False)  # noqa: E731
    expected = _run(eager, _many(5))
    _with_oracle(graphs, _many(5), expected, 0.3)
    _same(_run(graphs, _many(5), dies=dies), expected)


@pytest.mark.proof(each="name")
@pytest.mark.parametrize(
    "name",
    [
        "qwen3.5",
        "granite4-hybrid",
        "lfm2",
        "olmo-hybrid",
        "jamba",
        "falcon-h1",
        "minimax",
        "recurrent-gemma",
        "qwen4",
        "deepseek-v4",
    ],
)
def test_recurrent_states_behind_refused_drafts_of_a_graph_are_those_without(name: str, tmp_path: Path) -> None:
    """Rows are preempted, and the worker dies, among drafts of which a third is wrong."""
    tiny.make_of(hybrids.configs(tiny.SHAPE)[name](), name, tmp_path)
    eager, graphs = (DeviceEngine(tmp_path, max_prefill_chunk=16, cuda_graphs=graphs) for graphs in (False, True))
    asks = [*_asks("sampled logprobs"), *_asks("greedy", 3)]
    expected = _run(eager, asks)
    oracle = _with_oracle(graphs, asks, expected, 0.3)
    deaths = iter([False] * 9 + [True])
    _same(_run(graphs, asks, blocks=9, dies=lambda: next(deaths, False)), expected)
    assert 30 < oracle.accepted < oracle.drafted - 30
    assert graphs.deaths == 1
    assert graphs.replays > 0.7 * graphs.steps, "prompts are not"


@pytest.mark.proof(each="method")
@pytest.mark.parametrize("method", ["eagle3", "glm4-moe"])
def test_a_head_drafts_from_the_hidden_states_of_a_graph(method: str, tmp_path: Path) -> None:
    made = Made(method, tmp_path)
    engines = [
        DeviceEngine(made.target, speculative=made.speculative, max_prefill_chunk=16, cuda_graphs=graphs)
        for graphs in (True, False)
    ]
    found, expected = (_run(engine, _asks("sampled")) for engine in engines)
    _same(found, expected)
    assert engines[0].replays > 0.5 * engines[0].steps
    stats = [engine.scheduler.stats() for engine in engines]
    assert stats[0].accepted_by_position == stats[1].accepted_by_position
    assert sum(stats[0].accepted_by_position) > 0


def test_a_draft_models_passes_are_graphs_too(folder: Path) -> None:
    by_itself = SpeculativeConfig("draft_model", 3, model=str(folder))
    engines = [DeviceEngine(folder, speculative=by_itself, cuda_graphs=graphs) for graphs in (True, False)]
    found, expected = (_run(engine, _asks("sampled")) for engine in engines)
    _same(found, expected)
    stats = [engine.scheduler.stats() for engine in engines]
    assert stats[0].accepted_by_position == stats[1].accepted_by_position
    assert stats[0].num_accepted_tokens > 0.8 * stats[0].num_draft_tokens
    assert engines[0].replays > 2 * engines[0].steps, "of the model, and of each further draft"


@pytest.mark.parametrize(
    ("architecture", "variant"),
    [("olmo3", "reference"), ("qwen3-moe", "reference"), pytest.param("llama", "triton", marks=pytest.mark.triton)],
)
def test_padding_of_a_pass_changes_no_row_and_reads_nothing(
    architecture: str, variant: Variant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of several tokens, one among them a prompt's rest, in a size of more; the block of padding holds NaN."""
    linear = importlib.import_module("stentor.kernels.linear")
    monkeypatch.setattr(linear, "choose", lambda *_, **__: "reference")  # torch multiplies float32
    tiny.make(architecture, tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    model = Decoder(checkpoint.decoder, LayerContext(CPU, torch.float32, False), CONTEXT)
    model.load(iterate_weights(checkpoint, torch.float32))
    groups = model.config.cache_groups
    block_groups = block_groups_of(groups, CONTEXT)
    caches = allocate_caches(groups, 13, BLOCK, CPU, torch.float32, block_groups)
    table = RowTable(4, CONTEXT, BLOCK, 1 + max(cache.group for cache in caches))
    blocks = iter(range(12))
    for slot, length in enumerate((20, 17, 9)):
        own = [next(blocks) for _ in range(-(-length // BLOCK))] * len(table.blocks)
        table.add(NewRow(slot, _prompt(length, slot), length, SamplingParams(max_tokens=1), 0, own))
    rows = [RowStep(0, 16, 4, [], True, 3), RowStep(1, 16, 1, [], True), RowStep(2, 6, 3, [], False)]
    eager, device = ModelPass(model, caches, table, CPU, None), FakeDevice()
    graphs = PassGraphs(
        model, caches, table, device, GraphCapture([GraphSize(12, query_len=4)]), CONTEXT, keeps_hidden=True
    )
    with force_variant("reference"), torch.inference_mode():
        eager.run([RowStep(row.slot, 0, row.start, [], False) for row in rows])
        expected = eager.run(rows).logits
    for tensor in cache_tensors(caches):
        tensor[-1] = torch.nan
    with force_variant(variant), torch.inference_mode():
        while graphs.advance(busy=False) is not None:
            pass
        for tensor in cache_tensors(caches):
            tensor[-1] = torch.nan
        found = ModelPass(model, caches, table, CPU, graphs).run(rows, every=True)
    (graph,) = device.graphs
    assert graph.replays == 1
    assert found.logits is not None
    torch.testing.assert_close(found.logits, expected, rtol=1e-4, atol=1e-4)
    assert found.states is not None
    assert list(found.states[0]) == [0, 4, 5]
    assert found.states[1].shape == (8, model.config.hidden_size)


def _executed(folder: Path, device: FakeDevice) -> tuple[SyncExecutor, list[object]]:
    """A worker's executor, of whose graphs the first are captured, and what it sends."""
    config = model_config(folder, max_model_len=CONTEXT, max_num_seqs=16, speculative=NGRAM)
    sent: list[object] = []
    executor = set_up_on(config, lambda *_: None, device).executor(sent.append, None)
    assert isinstance(executor, SyncExecutor)
    return executor, sent


def _first_step(masked: Sequence[int] = ()) -> StepPlan:
    new = NewRow(0, _prompt(3), 3, SamplingParams(max_tokens=9), 0, [0], masked=bool(masked))
    return StepPlan(0, 0, [], [new], [RowStep(0, 0, 3, [], True)], masked=list(masked))


def test_the_rest_is_captured_while_nothing_comes_but_not_between_the_halves_of_a_step(folder: Path) -> None:
    device = FakeDevice()
    with force_variant("reference"):
        executor, sent = _executed(folder, device)
        first = len(device.graphs)
        executor.take(_first_step(masked=[0]))
        assert executor.rest() is None, "its logits wait where a capture would write"
        executor.mask(Masks(0, 0, [], []))
        while executor.rest() is not None:
            pass
    assert [type(message) for message in sent] == [StepResult]
    assert first == 8, "the memory of so many was measured at start"
    assert len(device.graphs) == 11, "of up to 16 rows of 4 tokens"


def test_a_worker_that_fails_to_capture_ends_and_names_graphs_as_the_reason(folder: Path) -> None:
    device = FakeDevice()
    with force_variant("reference"):
        executor, sent = _executed(folder, device)
        device.capture_error = RuntimeError("no more graphs")
        while not executor.failed and executor.rest() is not None:
            pass
    (failed,) = sent
    assert isinstance(failed, Failed)
    assert failed.graphs


def test_the_memory_of_graphs_is_told_from_the_first_of_them(folder: Path) -> None:
    mib = 1 << 20
    device = FakeDevice(total=1024 * mib, allocated=64 * mib, pool=30 * mib, graph=2 * mib)
    config = model_config(folder, max_model_len=CONTEXT, max_num_seqs=64, speculative=NGRAM)
    with force_variant("reference"):
        ready = set_up_on(config, lambda *_: None, device).ready
    (line,) = (line for line in ready.memory if line.what == "CUDA graphs")
    assert line.note.startswith("35 sizes")
    assert len(device.graphs) == 8
    assert 30 * mib + 35 * 2 * mib < line.bytes < 30 * mib + 35 * 2 * mib + 8 * mib
