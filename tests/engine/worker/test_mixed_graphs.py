"""Steps with prompts as graphs, on a fake device, against the synchronous runner: any split of rows below a size."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from stentor.engine.layers.forward_batch import LayerCache
from stentor.engine.worker.caches import cache_tensors
from stentor.engine.worker.compute.sync_compute import SyncCompute
from stentor.engine.worker.device.graphs import GraphSize
from stentor.kernels import force_variant
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowStep, StepPlan
from stentor.tests.engine.worker.fake_device import FakeDevice
from stentor.tests.engine.worker.runners import BUDGET, SLOTS, Pair, WatchedDecoder, load, prompt
from stentor.tests.parity import hybrids, tiny

pytestmark = pytest.mark.usefixtures("one_thread")

DECODES = (1, 3, 8)
MIXED = tuple(GraphSize(rows, tokens) for rows in (8, 2, 0) for tokens in (128, 32, 16))
"""The largest has room for as many prompts as there are slots."""
GREEDY: dict[str, Any] = {"temperature": 0.0}
RULES: list[dict[str, Any]] = [
    GREEDY,
    {},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
    {"repetition_penalty": 1.4, "frequency_penalty": 0.3},
    {"logprobs": 3},
    {"allowed_token_ids": (3, 4, 5, 50, 300)},
]


def _pair(model: WatchedDecoder, **changes: Any) -> Pair:
    return Pair(model, **{"sizes": DECODES, "mixed": MIXED, **changes})


def _submit_all(pair: Pair, seed: int, *, requests: int = 16, longest: int = 40, rules: int = len(RULES)) -> None:
    """Short prompts and long ones, that share beginnings, of one sequence or two; answers of up to ``longest``."""
    rng = random.Random(seed)
    for number in range(requests):
        params = SamplingParams(max_tokens=rng.randrange(1 + longest // 5, longest), **RULES[rng.randrange(rules)])
        length = rng.choice((2, rng.randrange(3, 12), rng.randrange(12, 50)))
        pair.submit(prompt(length, number % 3), params, [rng.getrandbits(64) for _ in range(rng.choice((1, 1, 2)))])


def _replays(pair: Pair) -> int:
    return sum(graph.replays for graph in pair.device.graphs)


def _rows(pair: Pair) -> list[list[RowStep]]:
    return [plan.rows for plan in pair.plans]


def _poison_null_block(pair: Pair) -> None:
    for tensor in cache_tensors(pair.compute._step._caches):
        tensor[pair.compute._null_block] = torch.nan


@pytest.mark.proof(each="seed")
@pytest.mark.parametrize("seed", range(6))
def test_random_schedules_draw_in_graphs_what_the_host_draws(model: WatchedDecoder, seed: int) -> None:
    pair = _pair(model, blocks=(64, 6)[seed % 2])
    pair.capture_all()
    warmed = model.eager
    waves = [8 * seed + wave for wave in range(8)]  # who comes first decodes beside the prompts of the rest
    with force_variant("reference"):
        while True:
            if waves and len(pair.plans) >= 2 * (8 - len(waves)):
                _submit_all(pair, waves.pop(0), requests=2)
            _poison_null_block(pair)
            if not pair.turn():
                break
    launched = len(pair.plans)
    assert (pair.scheduler.stats().preemptions > 0) == bool(seed % 2)
    # the host runs each step too, and it alone runs eagerly: no step here has log-probabilities of its prompt
    assert model.eager - warmed == launched
    assert _replays(pair) == 2 * launched
    kinds = [(any(row.count == 1 for row in rows), sum(row.count > 1 for row in rows)) for rows in _rows(pair)]
    assert sum(decodes and prompts > 0 for decodes, prompts in kinds) > 3
    assert max(prompts for _, prompts in kinds) > 1


@pytest.mark.proof(each="which")
@pytest.mark.parametrize(
    "which", ["windows", "lfm2", "granite4-hybrid", "qwen3-next", "mamba2", "jamba", "deepseek-v3.2"]
)
def test_every_kind_of_layer_finds_its_rows_in_a_graph_with_prompts(tmp_path: Path, which: str) -> None:
    if which == "windows":
        tiny.make("olmo3", tmp_path)
    elif which.startswith("deepseek"):
        tiny.make(which, tmp_path)
    else:
        tiny.make_of(hybrids.configs(tiny.SHAPE)[which](), which, tmp_path)
    pair = _pair(load(tmp_path), blocks=30, chunk=32)
    pair.capture_all()
    # what rows compute among others may differ in its last bits where attention is to latents
    _submit_all(pair, 2, longest=16, rules=3 if which.startswith("deepseek") else len(RULES))
    pair.run()
    assert _replays(pair) > len(pair.plans), "most steps are graphs"


def test_masks_come_between_the_two_halves_of_a_step_with_prompts(model: WatchedDecoder) -> None:
    pair = _pair(model)
    pair.capture_all()
    for number in range(6):
        params = SamplingParams(max_tokens=8, **RULES[number % 3])
        pair.submit(prompt(9 + 5 * number, number % 2), params, [number], grammar=number if number % 2 else None)
    pair.run()
    masked = [plan for plan in pair.plans if plan.masked]
    assert any(row.count > 1 for plan in masked for row in plan.rows)
    assert _replays(pair) == 2 * len(pair.plans)


def test_padding_changes_no_block_and_no_state_of_anybody(model: WatchedDecoder) -> None:
    """After every step the caches of both sides hold the same, but for the block that is nobody's."""
    pair = _pair(model)
    pair.capture_all()
    _submit_all(pair, 11, requests=8, longest=12)
    ours: Sequence[LayerCache] = pair.compute._step._caches
    assert isinstance(pair.host.compute, SyncCompute)
    theirs: Sequence[LayerCache] = pair.host.compute._pass._caches
    with force_variant("reference"):
        while pair.turn():
            if pair.flights:
                continue
            for mine, other in zip(cache_tensors(ours), cache_tensors(theirs), strict=True):
                assert torch.equal(mine[: pair.compute._null_block], other)
    assert _replays(pair) > 10


def _step(pair: Pair, plan: StepPlan) -> None:
    assert pair.runner.step(plan).tokens == pair.host.step(plan).tokens


@force_variant("reference")
def test_a_step_takes_the_graph_with_the_least_padding_and_none_where_none_holds_it(model: WatchedDecoder) -> None:
    pair = _pair(model, mixed=(GraphSize(8, 24), GraphSize(2, 16), GraphSize(0, 16)))
    pair.capture_all()
    params = SamplingParams(max_tokens=30, **GREEDY)
    rows = [NewRow(slot, prompt(30, slot), 30, params, 0, [2 * slot, 2 * slot + 1]) for slot in range(4)]
    used: list[list[str]] = []

    def run(plan: StepPlan) -> None:
        before = {id(graph): graph.replays for graph in pair.device.graphs}
        _step(pair, plan)
        used.append([str(size) for size in _sizes(pair) if _graph(pair, size).replays > before[id(_graph(pair, size))]])

    run(StepPlan(0, 0, [], rows[:1], [RowStep(0, 0, 16, [], False)]))
    run(StepPlan(0, 1, [], [], [RowStep(0, 16, 14, [], True)]))
    run(StepPlan(0, 2, [], rows[1:2], [RowStep(0, 30, 1, [], True), RowStep(1, 0, 9, [], False)]))
    run(StepPlan(0, 3, [], rows[2:], [RowStep(2, 0, 8, [], False), RowStep(3, 0, 8, [], False)]))
    run(StepPlan(0, 4, [], [], [RowStep(1, 9, 20, [], False)]))
    assert used == [
        ["0 decoding rows and 16 tokens of prompts"],
        ["0 decoding rows and 16 tokens of prompts"],
        ["2 decoding rows and 16 tokens of prompts"],
        [],
        ["8 decoding rows and 24 tokens of prompts"],
    ], "of two prompts at once none has room"


def _sizes(pair: Pair) -> list[GraphSize]:
    return pair.compute.captured


def _graph(pair: Pair, size: GraphSize) -> Any:
    return pair.compute._graphs._captured[size].forward


@force_variant("reference")
def test_log_probabilities_of_a_prompt_are_computed_without_a_graph(model: WatchedDecoder) -> None:
    pair = _pair(model)
    pair.capture_all()
    for prompt_logprobs, replays in ((2, 0), (None, 2)):
        before = _replays(pair)
        params = SamplingParams(max_tokens=1, prompt_logprobs=prompt_logprobs, **GREEDY)
        row = NewRow(0, prompt(9), 9, params, 0, [1])
        _step(pair, StepPlan(0, 0, [0], [row], [RowStep(0, 0, 9, [], True)]))
        assert _replays(pair) - before == replays


def test_one_copy_and_at_most_one_table_update_a_step_go_to_the_device(model: WatchedDecoder) -> None:
    pair = _pair(model, device=FakeDevice())
    pair.capture_all()
    before = pair.device.uploads
    _submit_all(pair, 7, longest=12)
    pair.run()
    assert pair.device.uploads - before == len(pair.plans)


@force_variant("reference")
def test_a_full_house_and_the_largest_prompt_fill_a_graph_without_padding(model: WatchedDecoder) -> None:
    size = GraphSize(SLOTS - 1, BUDGET - SLOTS + 1)
    pair = _pair(model, sizes=(SLOTS,), mixed=(size,))
    pair.capture_all()
    params = SamplingParams(max_tokens=9, **GREEDY)
    rows = [NewRow(slot, prompt(3, slot), 3, params, 0, [slot]) for slot in range(SLOTS - 1)]
    _step(pair, StepPlan(0, 0, [], rows, [RowStep(row.slot, 0, 3, [], True) for row in rows]))
    long = NewRow(SLOTS - 1, prompt(40), 40, params, 0, [20, 21, 22])
    decodes = [RowStep(row.slot, 3, 1, [], True) for row in rows]
    before = _replays(pair)
    _step(pair, StepPlan(0, 1, [], [long], [*decodes, RowStep(long.slot, 0, size.prompt_tokens, [], False)]))
    assert _replays(pair) - before == 2
