"""A worker that serves from a device, a fake one: what it sends of its steps, and how it ends."""

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

from stentor.engine.worker import service
from stentor.engine.worker.compute.async_compute import AsyncCompute
from stentor.engine.worker.compute.pending import Pending
from stentor.engine.worker.families.setup_parts import Setup
from stentor.engine.worker.service import Worker
from stentor.engine.worker.setup.setup import set_up_on
from stentor.kernels import force_variant
from stentor.protocols.ipc.actors import Failed, Progress, Shutdown, StartWorker, WorkerReady
from stentor.protocols.ipc.codec import decode_engine_worker, encoder
from stentor.protocols.ipc.config import WorkerConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowStep, StepPlan, StepResult
from stentor.tests.engine.channel.harness import both_ends
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.engine.worker.fake_device import FakeDevice, FakeGraph
from stentor.tests.parity import tiny

pytestmark = pytest.mark.usefixtures("one_thread")

MIB = 1 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny.make("llama", folder)
    return folder


def _device(**changes: Any) -> FakeDevice:
    return FakeDevice(**{"total": 1024 * MIB, "allocated": 64 * MIB, "outside": 100 * MIB, **changes})


def _serve(config: WorkerConfig, *plans: StepPlan) -> tuple[int, list[object]]:
    """The exit code of a worker that is not told to end, and what it sent but for its progress."""
    with both_ends() as (engine, worker), force_variant("reference"):
        for message in (StartWorker(config), *plans):
            assert engine.try_send(encoder.encode(message))
        code = Worker(worker).run()
        received = [decode_engine_worker.decode(frame) for frame in engine.try_receive()]
    return code, [message for message in received if not isinstance(message, Progress)]


def _plan_of_nobody() -> StepPlan:
    """By which a worker that serves ends."""
    return StepPlan(0, 7, [], [], [RowStep(3, 0, 1, [], True)])


def test_a_worker_serves_from_a_device_one_step_ahead(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = _device()
    monkeypatch.setattr(service, "set_up", lambda config, progress, *_: set_up_on(config, progress, device))
    config = model_config(folder, max_num_seqs=4, max_num_batched_tokens=32)
    new = NewRow(1, list(range(5, 25)), 20, SamplingParams(max_tokens=5, temperature=0.0), 3, [2, 0])
    plans = [
        StepPlan(0, 0, [], [new], [RowStep(1, 0, 20, [], True)]),
        StepPlan(0, 1, [], [], [RowStep(1, 20, 1, [], True)]),
    ]
    with both_ends() as (engine, worker), force_variant("reference"):
        for message in (StartWorker(config), *plans, Shutdown()):
            assert engine.try_send(encoder.encode(message))
        assert Worker(worker).run() == 0
        received = [decode_engine_worker.decode(frame) for frame in engine.try_receive()]
    ready, *results = (message for message in received if not isinstance(message, Progress))
    assert isinstance(ready, WorkerReady)
    host = LocalEngine(model_config(folder)).runner
    with force_variant("reference"):
        expected = [host.step(plan).tokens for plan in plans]
    assert [result.tokens for result in results if isinstance(result, StepResult)] == expected


def test_a_worker_whose_step_fails_on_the_device_says_so_and_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = _device()
    monkeypatch.setattr(service, "set_up", lambda config, progress, *_: set_up_on(config, progress, device))
    with both_ends() as (engine, worker), force_variant("reference"):
        config = model_config(folder, max_num_seqs=4, max_num_batched_tokens=32)
        plan = StepPlan(0, 7, [], [], [RowStep(3, 0, 1, [], True)])
        for message in (StartWorker(config), plan):
            assert engine.try_send(encoder.encode(message))
        assert Worker(worker).run() == 1
        received = [decode_engine_worker.decode(frame) for frame in engine.try_receive()]
    assert received[-1] == Failed("the worker failed in step 7: ValueError")
    assert sum(isinstance(message, Failed) for message in received) == 1


def test_a_worker_that_cannot_capture_a_graph_while_it_starts_says_so_and_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    device = _device(capture_error=torch.OutOfMemoryError("no room"))
    monkeypatch.setattr(service, "set_up", lambda config, progress, *_: set_up_on(config, progress, device))
    code, received = _serve(model_config(folder, max_num_seqs=4, max_num_batched_tokens=32))
    why = "capturing a CUDA graph of 4 decoding rows and 32 tokens of prompts failed: OutOfMemoryError"
    assert (code, received) == (1, [Failed(why, graphs=True)])
    assert "a CUDA graph could not be captured: the worker ends" in capfd.readouterr().err
    code, received = _serve(model_config(folder, max_num_seqs=4, cuda_graphs=False), _plan_of_nobody())
    assert isinstance(received[0], WorkerReady), "without graphs it serves"


def test_a_worker_that_cannot_capture_a_graph_while_it_serves_sends_its_results_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = _device()

    def set_up(config: WorkerConfig, progress: Any, *_: object) -> Setup:
        setup = set_up_on(config, progress, device)
        device.capture_error = RuntimeError("no graphs here")
        return setup

    monkeypatch.setattr(service, "set_up", set_up)
    new = NewRow(1, list(range(5, 25)), 20, SamplingParams(max_tokens=5, temperature=0.0), 3, [2, 0])
    plan = StepPlan(0, 0, [], [new], [RowStep(1, 0, 20, [], True)])
    code, received = _serve(model_config(folder, max_num_seqs=4, max_num_batched_tokens=32), plan)
    assert code == 1
    ready, result, failed = received
    assert isinstance(ready, WorkerReady)
    assert isinstance(result, StepResult)
    assert isinstance(failed, Failed)
    assert failed.graphs


def test_a_failed_capture_is_told_though_a_step_that_was_on_its_way_fails_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = Event()

    class Broken(FakeDevice):
        serves = False

        def capture(self, body: Callable[[], None]) -> FakeGraph:
            if not self.serves:
                return super().capture(body)
            tried.set()
            raise RuntimeError("no graphs here")

    device = Broken()

    def set_up(config: WorkerConfig, progress: Any, *_: object) -> Setup:
        setup = set_up_on(config, progress, device)
        device.serves = True
        return setup

    def finish(compute: AsyncCompute, pending: Pending) -> StepResult:
        if not device.serves:
            return finished(compute, pending)
        assert tried.wait(60)
        raise RuntimeError("the device is in an odd state")

    finished = AsyncCompute.finish
    monkeypatch.setattr(AsyncCompute, "finish", finish)
    monkeypatch.setattr(service, "set_up", set_up)
    new = NewRow(1, list(range(5, 25)), 20, SamplingParams(max_tokens=5, temperature=0.0), 3, [2, 0])
    config = model_config(folder, max_num_seqs=4, max_num_batched_tokens=32, cuda_graph_stall=1.0)
    code, received = _serve(config, StepPlan(0, 0, [], [new], [RowStep(1, 0, 20, [], True)]))
    assert code == 1
    failed = received[-1]
    assert isinstance(failed, Failed)
    assert failed.graphs
    assert len(received) == 2
