"""Adapters are read beside the steps, put into slots, and let go without a trace."""

import gc
import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import save_file

from stentor.engine.channel import Endpoint
from stentor.engine.layers.linear.adapters import AdapterPlaces, AdapterRows
from stentor.engine.worker import service
from stentor.engine.worker.adapters import store as adapter_store
from stentor.engine.worker.adapters.store import AdapterStore
from stentor.engine.worker.compute.executor import Executor
from stentor.kernels import native
from stentor.kernels.low_rank import LowRankSum
from stentor.protocols.ipc.actors import Shutdown
from stentor.protocols.ipc.adapters import AdapterLoaded, AdapterRef, LoadAdapter, ReadsAdapters
from stentor.protocols.ipc.codec import encoder
from stentor.tests.examples import examples

PART = "model.layers.0.self_attn.q_proj"
INPUTS, OUTPUTS, RANK = 8, 6, 2
CPU = torch.device("cpu")


def write(folder: Path, module: str = PART, value: float = 1.0) -> AdapterRef:
    folder.mkdir(parents=True)
    tensors = {
        f"base_model.model.{module}.lora_A.weight": torch.full((RANK, INPUTS), value),
        f"base_model.model.{module}.lora_B.weight": torch.ones(OUTPUTS, RANK),
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": RANK, "lora_alpha": RANK}))
    return AdapterRef(int(value), folder.name, folder.name, str(folder.parent))


def store(parts: tuple[str, ...] = (PART,)) -> tuple[AdapterStore, AdapterPlaces]:
    places = AdapterPlaces()
    packed = native.library() is not None
    places.add(dict.fromkeys(parts, OUTPUTS), INPUTS, packed=packed, invariant=True)
    return AdapterStore(places, RANK, CPU), places


def added(places: AdapterPlaces, slot: int) -> float:
    """What a slot adds to each output of the first part for inputs of 1."""
    linear = next(iter(places.by_name.values())).linears[0]
    rows = AdapterRows.of([slot], [1], CPU)
    assert rows is not None
    product = linear.add_(torch.zeros(1, OUTPUTS), torch.ones(1, INPUTS), rows)
    value: float
    (value,) = set(product[0].tolist())
    return value


def test_a_slot_adds_what_is_put_there_until_another_adapter_is_or_it_is_dropped(tmp_path: Path) -> None:
    kept, places = store()
    for value in (1.0, 2.0):
        kept.load(write(tmp_path / str(int(value)), value=value))
    assert sorted(loaded.number for loaded in (*kept.take(None), *kept.take(None))) == [1, 2]
    assert not kept.reading
    kept.put([(0, 1), (1, 2)])
    assert [added(places, slot) for slot in (0, 1, 2)] == [INPUTS * RANK, 2 * INPUTS * RANK, 0.0]
    kept.put([(0, 2)])
    assert added(places, 0) == 2 * INPUTS * RANK
    kept.drop(2)
    assert [added(places, slot) for slot in (0, 1)] == [0.0, 0.0]
    assert kept.numbers == [1]


@pytest.mark.parametrize("before", ["", "model.language_model.", "language_model.model."])
def test_the_language_model_of_another_class_is_found_by_its_layers_and_no_other_part_is(
    before: str, tmp_path: Path
) -> None:
    kept, _ = store()
    rest = PART.removeprefix("model.")
    for name in (before + rest, "model.vision_tower." + rest):
        kept.load(write(tmp_path / name, name))
        (loaded,) = kept.take(None)
        assert bool(loaded.error) == ("vision" in name), loaded


def test_what_is_wrong_with_an_adapter_is_told_and_nothing_is_kept(tmp_path: Path) -> None:
    kept, _ = store()
    ref = write(tmp_path / "cut")
    file = tmp_path / "cut" / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    kept.load(ref)
    kept.load(AdapterRef(2, "nobody", "nobody", str(tmp_path)))
    cut, nobody = [*kept.take(None), *kept.take(None)][:2]
    assert "cut short" in cut.error
    assert nobody == AdapterLoaded(2, nobody.error, True)
    assert not kept.numbers


def test_loads_and_unloads_leave_no_weights_no_descriptors_and_no_threads(tmp_path: Path) -> None:
    kept, _ = store()
    ref = write(tmp_path / "one")

    def turn(number: int) -> None:
        kept.load(AdapterRef(number, ref.name, ref.path, ref.root))
        assert not kept.take(None)[0].error
        kept.put([(number % 2, number)])
        kept.drop(number)

    def counted() -> tuple[int, int, int]:
        gc.collect()
        weights = sum(isinstance(each, LowRankSum) for each in gc.get_objects())
        return weights, len(os.listdir("/proc/self/fd")), threading.active_count()

    turn(0)
    before = counted()
    for number in range(1, examples(20, 1000)):
        turn(number)
    assert counted() == before
    assert not kept.numbers


def test_a_worker_says_that_it_reads_until_it_has_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, read = threading.Event(), vars(adapter_store)["read_adapter"]
    told: list[object] = []

    def slowly(*given: Any) -> object:
        assert disk.wait(60)
        return read(*given)

    monkeypatch.setattr(adapter_store, "read_adapter", slowly)
    monkeypatch.setattr(service, "_READING_SECONDS", 0.001)
    orders = [encoder.encode(LoadAdapter(write(tmp_path / "one")))]

    def receive(seconds: float | None) -> list[bytes]:
        if orders:
            return [orders.pop()]
        if AdapterLoaded(1) in told:
            return [encoder.encode(Shutdown())]
        assert seconds is not None, "it sleeps, and nobody hears of the adapter"
        time.sleep(0.001)
        if told.count(ReadsAdapters()) >= 3:
            disk.set()
        return []

    worker = service.Worker(cast(Endpoint, SimpleNamespace(receive_blocking=receive)))
    steps = SimpleNamespace(rest=lambda: None, failed=False, tell=told.append, close=lambda: None)
    worker._executor, worker._adapters = cast(Executor, steps), store()[0]
    assert worker.run() == 0
    assert told[:3] == [ReadsAdapters()] * 3
    assert told[-1] == AdapterLoaded(1), "after it nothing is read"
