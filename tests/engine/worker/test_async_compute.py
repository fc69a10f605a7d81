"""The runner of a device, on a fake one, against the synchronous runner: step by step the same."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stentor.engine.worker.device import staging
from stentor.engine.worker.device.graphs import CaptureError, GraphSize, graph_sizes
from stentor.engine.worker.device.staging import Shape
from stentor.kernels import force_variant
from stentor.protocols.ipc.config import WorkerConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowStep, StepPlan
from stentor.tests.engine.worker.fake_device import FakeDevice, FakeGraph
from stentor.tests.engine.worker.runners import BLOCK, BUDGET, CONTEXT, SLOTS, Pair, WatchedDecoder, load, prompt
from stentor.tests.parity import hybrids, tiny

pytestmark = pytest.mark.usefixtures("one_thread")

SIZES = (1, 2, 4, 8)
GREEDY: dict[str, Any] = {"temperature": 0.0}

RULES: list[dict[str, Any]] = [
    GREEDY,
    {},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    {"repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    {**GREEDY, "frequency_penalty": 1.0},
    {"logit_bias": ((5, 4.0), (6, -100.0)), "banned_token_ids": (9, 10)},
    {"allowed_token_ids": (3, 4, 5, 50, 300), "top_k": 3},
    {**GREEDY, "min_tokens": 6, "eos_token_ids": tuple(range(3, 160)), "stop_token_ids": (200,)},
    {"logprobs": 4, "repetition_penalty": 1.2},
    {**GREEDY, "logprobs": 0},
    {"logprobs": 3, "logprob_token_ids": (7, 0, 300), "frequency_penalty": 0.5},
    {"prompt_logprobs": 3},
    {**GREEDY, "prompt_logprobs": 0, "logprobs": 2},
]


def _submit_all(pair: Pair, *, seed: int = 0, tokens: int = 14, requests: int = len(RULES), first: int = 0) -> None:
    """``first``: place of the first request's rule."""
    rng = random.Random(seed)
    for number in range(requests):
        params = SamplingParams(max_tokens=rng.randrange(1, tokens), **RULES[(first + number) % len(RULES)])
        seeds = [rng.getrandbits(64) for _ in range(rng.choice((1, 1, 3)))]
        pair.submit(prompt(rng.randrange(1, 60), seed=number % 5), params, seeds)


@pytest.mark.proof(each="sizes")
@pytest.mark.parametrize("sizes", [(), SIZES, (3,)])
def test_every_rule_draws_the_tokens_of_the_synchronous_runner(model: WatchedDecoder, sizes: tuple[int, ...]) -> None:
    pair = Pair(model, sizes=sizes)
    pair.capture_all()
    _submit_all(pair)
    pair.run()
    assert pair.results
    replays = sum(graph.replays for graph in pair.device.graphs)
    assert (replays > 15) == bool(sizes)
    assert model.eager > 0


@pytest.mark.parametrize(
    ("sizes", "budget"),
    [
        (SIZES, 64),
        pytest.param((), 8, marks=pytest.mark.proof),
        pytest.param((), 64, marks=pytest.mark.proof),
        pytest.param(SIZES, 8, marks=pytest.mark.proof),
    ],
)
def test_preemptions_prefix_hits_and_slots_that_change_hands_change_nothing(
    model: WatchedDecoder, sizes: tuple[int, ...], budget: int
) -> None:
    pair = Pair(model, sizes=sizes, blocks=6, budget=budget)
    pair.capture_all()
    _submit_all(pair, seed=3, tokens=12, requests=len(RULES))
    pair.run()
    stats = pair.scheduler.stats()
    assert stats.preemptions > 0
    entered = [(plan, {new.slot for new in plan.new}) for plan in pair.plans]
    assert any(row.start for plan, slots in entered for row in plan.rows if row.slot in slots), "no prefix was reused"
    assert sum(bool(plan.freed) for plan in pair.plans) > 3


@pytest.mark.parametrize(
    ("architecture", "sizes", "blocks", "host_blocks", "requests"),
    [
        ("llama", SIZES, 6, 100, 8),
        pytest.param("olmo3", (), 15, 200, 8, marks=pytest.mark.proof),
        pytest.param("deepseek-v3-dense", (), 6, 5, 8, marks=pytest.mark.proof),
        ("lfm2", (), 6, 100, 8),
        # fewer would not drive out a state
        pytest.param("mamba2", SIZES, 100, 100, 12, marks=pytest.mark.proof),
    ],
)
def test_what_a_device_has_given_away_comes_back_from_host_memory_before_it_is_read(
    tmp_path: Path, architecture: str, sizes: tuple[int, ...], blocks: int, host_blocks: int, requests: int
) -> None:
    hybrid = hybrids.configs(tiny.SHAPE).get(architecture)
    if hybrid is None:
        tiny.make(architecture, tmp_path)
    else:
        tiny.make_of(hybrid(), architecture, tmp_path)
    pair = Pair(load(tmp_path), sizes=sizes, blocks=blocks, budget=40, chunk=32, host_blocks=host_blocks)
    pair.capture_all()
    for first, seed in ((0, 3), (4, 4), (8, 3)):
        _submit_all(pair, seed=seed, tokens=requests * 3 // 2, requests=requests, first=first)
        pair.run()
    stats = pair.scheduler.stats()
    assert stats.host_hits >= 32, "as many as lie before one checkpoint of a state"
    assert any(source < 0 for plan in pair.plans for source, _ in [*plan.copies, *plan.state_copies])


@pytest.mark.proof(each="sizes")
@pytest.mark.parametrize(("sizes", "blocks"), [(SIZES, 15), ((), 100)])
def test_layers_with_windows_find_their_blocks_by_their_own_tables(
    tmp_path: Path, sizes: tuple[int, ...], blocks: int
) -> None:
    """Three groups, of which two leave blocks behind; as graphs in a pool too small, and without in a large one."""
    tiny.make("olmo3", tmp_path)
    pair = Pair(load(tmp_path), sizes=sizes, blocks=blocks, budget=24)
    pair.capture_all()
    assert pair.scheduler._kv_cache.windows == (24, 24, 0)
    _submit_all(pair, seed=4, tokens=18, requests=len(RULES))
    pair.run()
    stats = pair.scheduler.stats()
    assert stats.preemptions > 0 if sizes else stats.prefix_hits > 0
    assert any(graph.replays for graph in pair.device.graphs) == bool(sizes)


@pytest.mark.parametrize(
    ("architecture", "sizes", "blocks"),
    [
        ("lfm2", (), 100),
        pytest.param("granite4-hybrid", (3,), 6, marks=pytest.mark.proof),
        pytest.param("qwen3-next", SIZES, 6, marks=pytest.mark.proof),
        pytest.param("lfm2", SIZES, 6, marks=pytest.mark.proof),
        pytest.param("mamba2", SIZES, 6, marks=pytest.mark.proof),
        pytest.param("jamba", SIZES, 6, marks=pytest.mark.proof),
    ],
)
def test_recurrent_states_follow_their_rows(
    tmp_path: Path, architecture: str, sizes: tuple[int, ...], blocks: int
) -> None:
    """With graphs in a pool too small, and without graphs in a large one; states are kept in prompts and in answers."""
    tiny.make_of(hybrids.configs(tiny.SHAPE)[architecture](), architecture, tmp_path)
    pair = Pair(load(tmp_path), sizes=sizes, blocks=blocks, budget=40, chunk=32)
    pair.capture_all()
    _submit_all(pair, seed=6, tokens=18)
    pair.run()
    stats = pair.scheduler.stats()
    assert (stats.preemptions > 0) == (blocks == 6)
    assert stats.prefix_hits > 0
    rows = [row for plan in pair.plans for row in plan.rows]
    assert any(row.state >= 0 and row.count == 1 for row in rows), "no state moved while its row decoded"
    assert any(new.state >= 0 for plan in pair.plans for new in plan.new), "no row began from a state of others"
    assert len({row.state for row in rows}) > SLOTS, "few slots changed hands"
    assert any(graph.replays for graph in pair.device.graphs) == bool(sizes)


def test_graphs_that_are_captured_between_steps_change_nothing(model: WatchedDecoder) -> None:
    pair = Pair(model, sizes=SIZES)
    _submit_all(pair, seed=5, tokens=16)
    pair.run(capture_between=True)
    assert pair.compute.captured == [GraphSize(rows) for rows in SIZES]
    assert all(graph.replays for graph in pair.device.graphs[:2])


def test_a_stream_that_decodes_alone_runs_in_its_graph_from_the_second_capture_on(model: WatchedDecoder) -> None:
    sizes = graph_sizes(WorkerConfig("", max_num_seqs=SLOTS, max_num_batched_tokens=BUDGET))
    pair = Pair(model, mixed=sizes)
    pair.submit(prompt(9), SamplingParams(max_tokens=24, **GREEDY))
    with force_variant("reference"):
        while pair.turn():
            pair.compute.advance(busy=True)
    (alone,) = (graph.forward for size, graph in pair.compute._graphs._captured.items() if size == GraphSize(1))
    assert isinstance(alone, FakeGraph)
    assert pair.device.graphs.index(alone) == 2, "the largest one's two graphs come before"
    assert len(pair.plans) == 1 + 23
    assert alone.replays == 23 - 4, "one step of the stream goes by for each piece of work, and two are on their way"
    assert pair.compute.captured == [GraphSize(1), GraphSize(0, 16), sizes[0]], "what no step asked for waits"


def test_a_step_is_launched_before_anybody_has_read_what_its_rows_drew(model: WatchedDecoder) -> None:
    pair = Pair(model)
    pair.submit(prompt(5), SamplingParams(max_tokens=4, **GREEDY))
    plans = [plan for _ in range(2) if (plan := pair.scheduler.plan(0.0))]
    assert [plan.rows[0].start for plan in plans] == [0, 5]
    with force_variant("reference"):
        first, second = map(pair.runner.launch, plans)
        assert not first.mark.reached()
        assert pair.compute.pending == 2
        assert pair.runner.finish(first).tokens == pair.host.step(plans[0]).tokens
        assert not second.mark.reached(), "a result waited for the step after"
        assert pair.compute.pending == 1
        assert pair.runner.finish(second).tokens == pair.host.step(plans[1]).tokens
    assert pair.compute.pending == 0


def test_one_copy_a_step_goes_to_the_device(model: WatchedDecoder) -> None:
    """And a second one if the log-probabilities of named tokens are read."""
    pair = Pair(model, sizes=SIZES)
    pair.capture_all()
    before = pair.device.uploads
    _submit_all(pair, seed=7)
    pair.run()
    named: dict[int, bool] = {}
    second = 0
    for plan in pair.plans:
        named |= {new.slot: bool(new.params.logprob_token_ids) for new in plan.new}
        second += any(row.sample and named[row.slot] for row in plan.rows)
    assert pair.device.uploads - before == len(pair.plans) + second
    assert 0 < second < len(pair.plans) / 2


def test_pinned_memory_of_log_probabilities_is_used_again_and_never_freed(model: WatchedDecoder) -> None:
    pair = Pair(model, sizes=SIZES)
    pair.capture_all()
    made = []
    for _ in range(2):
        for seed in range(4):
            params = SamplingParams(max_tokens=12, logprobs=3, prompt_logprobs=2, **GREEDY)
            pair.submit(prompt(40, seed), params)
        pair.run()
        made.append(pair.device.pinned_made)
    assert made[0] == made[1], "the second round takes what the first left"
    # freed by the thread that finishes, its event would land in the graph that the other captures
    assert pair.device.pinned_freed == 0


@pytest.fixture
def _tight(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Buffers without room to spare; layouts are kept, and none may come from before or stay."""
    monkeypatch.setattr("stentor.engine.worker.compute.async_compute._SPARE_BYTES", 0)
    monkeypatch.setattr(staging, "_ALIGNMENT", 8)
    staging._layout.cache_clear()
    yield
    staging._layout.cache_clear()


@pytest.mark.usefixtures("_tight")
def test_a_step_larger_than_the_staging_buffer_travels_alone(
    model: WatchedDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(model, sizes=SIZES, budget=8)
    pair.capture_all()
    fits: set[bool] = set()
    inner = pair.compute._staging.fits

    def watched(shape: Shape) -> bool:
        fits.add(inner(shape))
        return inner(shape)

    monkeypatch.setattr(pair.compute._staging, "fits", watched)
    _submit_all(pair, seed=9, tokens=8)
    pair.run()
    assert fits == {True, False}


def test_rows_that_decode_come_first_whatever_the_order_of_the_plan(model: WatchedDecoder) -> None:
    pair = Pair(model)
    greedy = SamplingParams(max_tokens=9, **GREEDY)
    rows = [NewRow(slot, prompt(12, slot), 12, greedy, 0, [slot]) for slot in range(3)]
    plans = [
        StepPlan(0, 0, [], rows, [RowStep(slot, 0, 8 if slot == 1 else 12, [], slot != 1) for slot in range(3)]),
        StepPlan(0, 1, [], [], [RowStep(1, 8, 4, [], True), RowStep(2, 12, 1, [], True), RowStep(0, 12, 1, [], True)]),
        StepPlan(0, 2, [], [], [RowStep(slot, 13 if slot != 1 else 12, 1, [], True) for slot in (1, 0, 2)]),
    ]
    with force_variant("reference"):
        for plan in plans:
            assert pair.runner.step(plan).tokens == pair.host.step(plan).tokens


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (RowStep(3, 0, 1, [], True), "slot 3 holds no row"),
        (RowStep(0, 4, 1, [], True), "slot 0 runs to position 4; it entered with 4 tokens and has drawn 0 since"),
        (RowStep(0, 2, 3, [], True), "slot 0 runs to position 4"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(model: WatchedDecoder, row: RowStep, why: str) -> None:
    pair = Pair(model)
    new = NewRow(0, [5, 6, 7, 8], 4, SamplingParams(max_tokens=3), 0, [1])
    with force_variant("reference"), pytest.raises(ValueError, match=why):
        pair.runner.launch(StepPlan(0, 0, [], [new], [row]))


def test_a_third_step_at_once_is_refused(model: WatchedDecoder) -> None:
    pair = Pair(model)
    new = NewRow(0, [5, 6, 7, 8], 4, SamplingParams(max_tokens=9, **GREEDY), 0, [1])
    plans = [StepPlan(0, 0, [], [new], [RowStep(0, 0, 4, [], True)])]
    plans += [StepPlan(0, 1 + n, [], [], [RowStep(0, 4 + n, 1, [], True)]) for n in range(3)]
    with force_variant("reference"):
        first = pair.runner.launch(plans[0])
        pair.runner.launch(plans[1])
        with pytest.raises(RuntimeError, match="step 2 came with 2 steps on their way"):
            pair.runner.launch(plans[2])
        pair.runner.finish(first)
        pair.runner.launch(plans[2])


def test_a_sequence_fills_the_context_to_its_last_place(model: WatchedDecoder) -> None:
    pair = Pair(model, sizes=SIZES)
    pair.capture_all()
    for length in (CONTEXT - 1, CONTEXT - BLOCK, CONTEXT - 2 * BLOCK - 1):
        pair.submit(prompt(length), SamplingParams(max_tokens=1000, **GREEDY))
    pair.run()
    assert pair.plans[-1].rows[0].start == CONTEXT - 2


def test_a_full_house_runs_in_the_largest_graph(model: WatchedDecoder) -> None:
    pair = Pair(model, sizes=(SLOTS,), budget=64)
    pair.capture_all()
    for number in range(SLOTS):
        pair.submit(prompt(3, number), SamplingParams(max_tokens=10, **GREEDY))
    pair.run()
    assert pair.device.graphs[0].replays >= 8


def test_a_capture_that_fails_is_told_and_not_tried_again(model: WatchedDecoder) -> None:
    pair = Pair(model, sizes=SIZES, device=FakeDevice(capture_error=RuntimeError("no graphs here")))
    with pytest.raises(CaptureError, match="capturing a CUDA graph of 8 decoding rows failed: RuntimeError"):
        pair.capture_all()
    assert pair.compute.captured == []
    assert pair.compute.advance(busy=False) is None


def test_a_slot_forgets_the_row_that_had_it(model: WatchedDecoder) -> None:
    pair = Pair(model)
    greedy = SamplingParams(max_tokens=1, temperature=0.0)
    loud = SamplingParams(
        max_tokens=1, logprobs=2, prompt_logprobs=2, repetition_penalty=1.5, banned_token_ids=tuple(range(300))
    )
    plain = NewRow(5, [4, 5, 6, 7], 4, greedy, 0, [1])
    step = RowStep(5, 0, 4, [], True)
    with force_variant("reference"):
        alone = pair.runner.step(StepPlan(0, 0, [], [plain], [step]))
        other = NewRow(5, prompt(20), 20, loud, 9, [1, 2])
        noisy = pair.runner.step(StepPlan(0, 1, [5], [other], [RowStep(5, 0, 20, [], True)]))
        assert noisy.logprobs
        assert noisy.prompt_logprobs
        again = pair.runner.step(StepPlan(0, 2, [5], [plain], [step]))
    assert (again.tokens, again.logprobs, again.prompt_logprobs) == (alone.tokens, None, [])
