"""Adapters on a device, a fake one: rows draw what merged weights draw, in graphs and without, a step ahead."""

from pathlib import Path
from typing import Any

import pytest

from stentor.engine.worker import service
from stentor.engine.worker.compute.sync_compute import SyncCompute
from stentor.engine.worker.device.graphs import GraphSize, graph_sizes
from stentor.engine.worker.errors import SetupError
from stentor.engine.worker.families.setup_parts import Setup
from stentor.engine.worker.passes.pass_graphs import advance_all
from stentor.engine.worker.service import Worker
from stentor.engine.worker.setup import decoder as setup_family
from stentor.engine.worker.setup import setup
from stentor.engine.worker.setup.setup import set_up_on
from stentor.kernels import force_variant
from stentor.protocols.ipc.actors import Progress, Shutdown, StartWorker
from stentor.protocols.ipc.adapters import AdapterLoaded, AdapterRef, LoadAdapter
from stentor.protocols.ipc.codec import decode_engine_worker, encoder
from stentor.protocols.ipc.config import SpeculativeConfig, WorkerConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.channel.harness import both_ends
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.engine.worker.fake_device import FakeDevice
from stentor.tests.parity import tiny
from stentor.tests.parity.cuts import check_drawn, expected_logits, prompt_of
from stentor.tests.parity.tiny_adapters import ALL, merged, save_adapter

pytestmark = pytest.mark.usefixtures("one_thread")

RANK, TOKENS = 4, 9
TARGETS = {1: ALL, 2: (*ALL, "lm_head"), 3: (*ALL, "embed_tokens")}
"""By adapter. What the last changes of the embeddings has no table: it runs in no graph."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[int, Any], Path]:
    """The model, by adapter what it is with that merged, and the folder of both."""
    folder = tmp_path_factory.mktemp("adapted")
    models: dict[int, Any] = {0: tiny.make("llama", folder)}
    for number, targets in TARGETS.items():
        added = save_adapter(models[0], folder / str(number), number, rank=RANK, targets=targets)
        models[number] = merged(models[0], added)
    return models, folder


def _config(folder: Path, **changes: Any) -> WorkerConfig:
    fields = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "enable_lora": True, "max_loras": 2}
    return model_config(folder, **{**fields, "max_lora_rank": RANK, "max_cpu_loras": 3, **changes})


def _set_up(config: WorkerConfig, device: FakeDevice) -> Setup:
    with force_variant("reference"):
        return set_up_on(config, lambda *_: None, device)


def _ref(folder: Path, number: int) -> AdapterRef:
    return AdapterRef(number, str(number), str(number), str(folder))


def _replayed(device: FakeDevice) -> int:
    return sum(graph.replays for graph in device.graphs)


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
def test_rows_draw_what_merged_weights_draw_whatever_lies_in_the_slots(
    base: tuple[dict[int, Any], Path], graphs: bool
) -> None:
    """Three adapters take turns in two slots; a worker is lost, and begins without any."""
    models, folder = base
    device, config = FakeDevice(), _config(folder, cuda_graphs=graphs)
    made = _set_up(config, device)
    assert made.ahead is not None
    engine = LocalEngine(config, made)
    params = SamplingParams(max_tokens=TOKENS, temperature=0.0)
    deaths = iter([False] * 8 + [True])
    with force_variant("reference"):
        while made.ahead.advance(busy=False) is not None:
            pass
        before = _replayed(device)
        asked = {}
        for seed in range(2):
            for number in models:
                adapter = _ref(folder, number) if number else None
                prompt = prompt_of(seed, 20 + seed)
                asked[engine.submit(prompt, params, adapter=adapter)] = number, prompt
        engine.run(check=True, dies=lambda: next(deaths, False))
    assert engine.deaths == 1
    for rid, (number, prompt) in asked.items():
        check_drawn(models[number], engine, prompt, rid, TOKENS)
    assert (_replayed(device) > before) == graphs
    assert engine.adapters is not None
    assert len(engine.adapters.numbers) <= 3


def test_a_graph_serves_any_adapter_and_one_is_put_into_its_slot_between_two_replays(
    base: tuple[dict[int, Any], Path],
) -> None:
    models, folder = base
    device, config = FakeDevice(), _config(folder, max_loras=1)
    made = _set_up(config, device)
    assert made.ahead is not None
    engine = LocalEngine(config, made)
    params = SamplingParams(max_tokens=TOKENS, temperature=0.0)
    with force_variant("reference"):
        while made.ahead.advance(busy=False) is not None:
            pass
        replayed = []
        for seed, number in enumerate((1, 2, 1)):
            prompt, before = prompt_of(seed, 17), [graph.replays for graph in device.graphs]
            rid = engine.submit(prompt, params, adapter=_ref(folder, number))
            engine.run(check=True)
            check_drawn(models[number], engine, prompt, rid, TOKENS)
            replayed.append({at for at, graph in enumerate(device.graphs) if graph.replays > before[at]})
    assert replayed[0] == replayed[1] == replayed[2] != set()


def test_log_probabilities_of_prompts_are_those_of_the_adapted_head(base: tuple[dict[int, Any], Path]) -> None:
    models, folder = base
    device, config = FakeDevice(), _config(folder, max_num_batched_tokens=64)
    engine, prompt = LocalEngine(config, _set_up(config, device)), prompt_of(1, 20)
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    with force_variant("reference"):
        asked = {engine.submit(prompt, params, adapter=_ref(folder, 2)): 2, engine.submit(prompt, params): 0}
        engine.run(check=True)
    for rid, number in asked.items():
        told = [each.logprob for each in engine.prompts[rid].logprobs or () if each is not None]
        wanted = expected_logits(models[number], prompt)[:-1].log_softmax(1)
        assert told == pytest.approx([float(wanted[at, token]) for at, token in enumerate(prompt[1:])], abs=1e-3)


def test_what_adapters_take_is_told_and_the_cache_gets_the_rest(base: tuple[dict[int, Any], Path]) -> None:
    _, folder = base
    plain, served = (
        {line.what: line for line in _set_up(_config(folder, enable_lora=enabled), FakeDevice()).ready.memory}
        for enabled in (False, True)
    )
    assert "adapters" not in plain
    assert served["adapters"].note.startswith(f"2 of rank {RANK}; up to 3 take")
    assert served["adapters"].bytes > 0
    assert sum(line.bytes for line in served.values()) == sum(line.bytes for line in plain.values())


def test_a_start_without_room_for_adapters_says_what_to_lower(
    base: tuple[dict[int, Any], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = base
    with pytest.raises(SetupError, match=r"^64 adapters of rank 4 may take .* a fake device .* --max-lora-rank, "):
        _set_up(_config(folder, max_loras=64), FakeDevice(total=1 << 20))
    monkeypatch.setattr(setup_family, "available_memory", lambda: 2 << 20)
    with pytest.raises(SetupError, match=r"^1000 adapters of rank 4 may take .* this host .* --max-cpu-loras"):
        setup.set_up_on(_config(folder, max_cpu_loras=1000), lambda *_: None)


def test_each_size_of_a_step_is_captured_with_adapters_and_without() -> None:
    config = WorkerConfig("m", enable_lora=True, max_num_seqs=2, cuda_graph_prompt_tokens=0)
    largest, *others = [GraphSize(rows, adapted=adapted) for rows in (2, 1) for adapted in (True, False)]
    assert graph_sizes(config) == [largest, *others[1:], others[0]]


def test_a_worker_a_step_ahead_says_when_an_adapter_is_there(
    base: tuple[dict[int, Any], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = base
    monkeypatch.setattr(service, "set_up", lambda config, progress, *_: set_up_on(config, progress, FakeDevice()))
    with both_ends() as (engine, worker), force_variant("reference"):
        for message in (StartWorker(_config(folder)), LoadAdapter(_ref(folder, 1))):
            assert engine.try_send(encoder.encode(message))
        taken: list[object] = []
        asked = Worker(worker)

        def tell_to_end(loaded: AdapterLoaded) -> None:
            taken.append(loaded)
            assert engine.try_send(encoder.encode(Shutdown()))

        original = service.Worker._send

        def send(self: Worker, message: object) -> None:
            original(self, message)
            if isinstance(message, AdapterLoaded):
                tell_to_end(message)

        monkeypatch.setattr(service.Worker, "_send", send)
        assert asked.run() == 0
        received = [decode_engine_worker.decode(frame) for frame in engine.try_receive()]
    told = [message for message in received if not isinstance(message, Progress)][1:]
    assert told == taken == [AdapterLoaded(1)]


def test_rows_with_drafts_have_their_adapters_which_no_graph_has(base: tuple[dict[int, Any], Path]) -> None:
    models, folder = base
    device, config = FakeDevice(), _config(folder, speculative=SpeculativeConfig("ngram", 2))
    made = _set_up(config, device)
    engine = LocalEngine(config, made)
    params = SamplingParams(max_tokens=TOKENS, temperature=0.0)
    assert isinstance(made.runner.compute, SyncCompute)
    replayed = {}
    with force_variant("reference"):
        while advance_all(made.runner.compute.graphs, busy=False) is not None:
            pass
        for number in (0, 1):
            prompt, before = prompt_of(number, 20), _replayed(device)
            rid = engine.submit(prompt, params, adapter=_ref(folder, number) if number else None)
            engine.run(check=True)
            check_drawn(models[number], engine, prompt, rid, TOKENS)
            replayed[number] = _replayed(device) > before
    assert replayed == {0: True, 1: False}
