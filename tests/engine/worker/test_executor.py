"""Steps one ahead: each result goes as soon as it is there, in order, and a failure is said once."""

import math
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

import pytest

from stentor.engine.channel import PeerDied
from stentor.engine.worker.compute import executor as stepper
from stentor.engine.worker.compute.executor import AsyncExecutor, SyncExecutor
from stentor.protocols.ipc.actors import Failed
from stentor.protocols.ipc.steps import Masks, RowStep, StepPlan, StepResult

WAIT = 60.0


def _plan(step: int) -> StepPlan:
    return StepPlan(0, step, [], [], [])


def _masked(step: int) -> StepPlan:
    return StepPlan(0, step, [], [], [RowStep(0, 4, 1, [], True)], [0])


class ForwardMark(threading.Event):
    """Reached when it is set."""

    def reached(self) -> bool:
        return self.is_set()


@dataclass
class Flight:
    plan: StepPlan


class ScriptedRunner:
    """A runner and its computing in one: finishes a step when told to."""

    def __init__(self) -> None:
        self.launched: list[int] = []
        self.masked: list[int] = []
        self.gates: dict[int, threading.Event] = {}
        self.broken_launch: set[int] = set()
        self.broken_finish: set[int] = set()
        self.pending = 0
        self.work: deque[float | Exception | None] = deque()
        self.busy: list[bool] = []

    def launch(self, plan: StepPlan) -> Flight:
        if plan.step in self.broken_launch:
            raise RuntimeError("launch")
        self.gates.setdefault(plan.step, threading.Event())
        self.launched.append(plan.step)
        self.pending += 1
        return Flight(plan)

    def finish(self, flight: Flight) -> StepResult:
        plan = flight.plan
        assert self.gates[plan.step].wait(WAIT)
        self.pending -= 1
        if plan.step in self.broken_finish:
            raise RuntimeError("finish")
        return StepResult(0, plan.step, [], None, [], 0.0)

    def step(self, plan: StepPlan) -> StepResult:
        return self.finish(self.launch(plan))

    def mark(self) -> ForwardMark:
        self.forwarded = ForwardMark()
        return self.forwarded

    def forward(self, plan: StepPlan) -> Flight:
        return self.launch(plan)

    def draw(self, flight: Flight, masks: Masks) -> Flight:
        self.masked.append(masks.step)
        return flight

    def advance(self, *, busy: bool) -> float | None:
        self.busy.append(busy)
        answer = self.work.popleft() if self.work else None
        if isinstance(answer, Exception):
            raise answer
        return answer


class Outbox:
    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.arrived = threading.Condition()
        self.dead = False

    def __call__(self, message: object) -> None:
        with self.arrived:
            if self.dead:
                raise PeerDied("gone")
            self.sent.append(message)
            self.arrived.notify_all()

    def wait_for(self, count: int) -> list[Any]:
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.sent) >= count, WAIT)
            return list(self.sent)


@pytest.fixture
def runner() -> ScriptedRunner:
    return ScriptedRunner()


@pytest.fixture
def outbox() -> Outbox:
    return Outbox()


def _ahead(runner: ScriptedRunner, outbox: Outbox) -> AsyncExecutor:
    """Of the runner it uses no more than the script has."""
    return AsyncExecutor(runner, runner, outbox)  # type: ignore[arg-type]


def test_a_step_is_launched_while_the_one_before_runs(runner: ScriptedRunner, outbox: Outbox) -> None:
    steps = _ahead(runner, outbox)
    steps.take(_plan(0))
    steps.take(_plan(1))
    assert runner.launched == [0, 1]
    assert outbox.sent == []
    runner.gates[1].set()
    runner.gates[0].set()
    assert [result.step for result in outbox.wait_for(2)] == [0, 1]
    steps.close()


def test_a_result_goes_before_the_next_step_is_done(runner: ScriptedRunner, outbox: Outbox) -> None:
    steps = _ahead(runner, outbox)
    steps.take(_plan(0))
    steps.take(_plan(1))
    runner.gates[0].set()
    assert [result.step for result in outbox.wait_for(1)] == [0]
    runner.gates[1].set()
    outbox.wait_for(2)
    steps.close()


def test_a_launch_that_fails_is_told_after_the_results_before_it(
    runner: ScriptedRunner, outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    runner.broken_launch = {1}
    steps = _ahead(runner, outbox)
    steps.take(_plan(0))
    runner.gates[0].set()
    steps.take(_plan(1))
    assert steps.failed
    assert outbox.sent == [StepResult(0, 0, [], None, [], 0.0), Failed("the worker failed in step 1: RuntimeError")]
    steps.take(_plan(2))
    assert runner.launched == [0]
    assert "step 1 failed" in caplog.text


def test_one_thread_alone_sends_also_where_a_step_does_not_end(
    runner: ScriptedRunner, outbox: Outbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stepper, "_END_SECONDS", 0.01)
    senders: set[threading.Thread] = set()

    def send(message: object) -> None:
        senders.add(threading.current_thread())
        outbox(message)

    runner.broken_launch = {1}
    steps = AsyncExecutor(runner, runner, send)  # type: ignore[arg-type]
    steps.take(_plan(0))
    steps.take(_plan(1))
    assert steps.failed
    assert outbox.sent == [], "the ring belongs to the thread that waits for the device"
    assert "the worker failed in step 1: RuntimeError; a step before it does not end" in caplog.messages
    runner.gates[0].set()
    said = Failed("the worker failed in step 1: RuntimeError")
    assert outbox.wait_for(2) == [StepResult(0, 0, [], None, [], 0.0), said]
    assert senders == {steps._thread}


def test_steps_that_fail_in_both_halves_are_told_once(runner: ScriptedRunner, outbox: Outbox) -> None:
    runner.broken_finish, runner.broken_launch = {0}, {1}
    steps = _ahead(runner, outbox)
    steps.take(_plan(0))
    runner.gates[0].set()
    outbox.wait_for(1)
    steps.take(_plan(1))
    steps.take(_plan(2))
    steps.close()
    assert outbox.sent == [Failed("the worker failed in step 0: RuntimeError")]
    assert steps.failed


def test_a_worker_rests_until_there_is_work_and_looks_at_running_steps(runner: ScriptedRunner, outbox: Outbox) -> None:
    steps = _ahead(runner, outbox)
    assert steps.rest() is None
    runner.work.extend([0.0, None])
    assert [steps.rest(), steps.rest()] == [0.0, None]
    runner.pending = 1
    runner.work.extend([9.0, 0.01, None])
    assert [steps.rest() for _ in range(3)] == [0.25, 0.01, 0.25]
    assert runner.busy == [False, False, False, True, True, True]
    steps.close()


def test_a_worker_whose_step_has_just_ended_is_busy_still(
    runner: ScriptedRunner, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is on its way, and would wait for a capture that is not needed."""
    now = 100.0
    monkeypatch.setattr("stentor.engine.worker.compute.executor.time.monotonic", lambda: now)
    steps = _ahead(runner, outbox)
    steps.take(_plan(0))
    runner.gates[0].set()
    outbox.wait_for(1)
    runner.pending = 0
    runner.work.extend([math.inf, 0.001, 0.0, None])
    assert [steps.rest(), steps.rest()] == pytest.approx([0.005, 0.001])
    now += 0.006
    assert [steps.rest(), steps.rest()] == [0.0, None]
    assert runner.busy == [True, True, False, False]
    steps.close()


def test_work_between_steps_that_fails_ends_the_worker(runner: ScriptedRunner, outbox: Outbox) -> None:
    runner.work.append(KeyError("x"))
    steps = _ahead(runner, outbox)
    steps.rest()
    assert steps.failed
    assert outbox.sent == [Failed("the worker failed between two steps: KeyError")]


def test_an_engine_that_is_gone_ends_the_thread_quietly(runner: ScriptedRunner, outbox: Outbox) -> None:
    steps = _ahead(runner, outbox)
    outbox.dead = True
    steps.take(_plan(0))
    runner.gates[0].set()
    steps.close()
    assert not steps._thread.is_alive()
    assert not steps.failed


def test_a_result_that_cannot_be_sent_ends_the_worker(runner: ScriptedRunner, outbox: Outbox) -> None:
    sent: list[object] = []

    def send(message: object) -> None:
        if isinstance(message, StepResult):
            raise ValueError("too large")
        sent.append(message)

    steps = AsyncExecutor(runner, runner, send)  # type: ignore[arg-type]
    runner.gates[0] = threading.Event()
    runner.gates[0].set()
    steps.take(_plan(0))
    steps.close()
    assert steps.failed
    assert sent == [Failed("the worker failed to send a result: ValueError")]


def test_in_turn_a_failure_is_told_once_too(runner: ScriptedRunner, outbox: Outbox) -> None:
    runner.broken_launch = {1, 2}
    for gate in range(4):
        runner.gates[gate] = threading.Event()
        runner.gates[gate].set()
    steps = SyncExecutor(runner, outbox)  # type: ignore[arg-type]
    for number in range(4):
        steps.take(_plan(number))
    assert outbox.sent == [StepResult(0, 0, [], None, [], 0.0), Failed("the worker failed in step 1: RuntimeError")]


@pytest.mark.parametrize("ahead", [True, False])
def test_a_masked_step_is_drawn_when_its_masks_have_come(runner: ScriptedRunner, outbox: Outbox, ahead: bool) -> None:
    steps = _ahead(runner, outbox) if ahead else SyncExecutor(runner, outbox)  # type: ignore[arg-type]
    for number in range(3):
        runner.gates[number] = threading.Event()
        runner.gates[number].set()
    steps.take(_plan(0))
    steps.take(_masked(1))
    assert runner.launched == [0, 1]
    assert [result.step for result in outbox.wait_for(1)] == [0]
    steps.mask(Masks(0, 1, [], []))
    assert [result.step for result in outbox.wait_for(2)] == [0, 1]
    steps.take(_plan(2))
    assert [result.step for result in outbox.wait_for(3)] == [0, 1, 2]
    assert runner.masked == [1]
    steps.close()


def test_nothing_is_captured_between_the_halves_of_a_step(runner: ScriptedRunner, outbox: Outbox) -> None:
    steps = _ahead(runner, outbox)
    runner.work.extend([0.5, 0.5])
    steps.take(_masked(0))
    runner.pending = 0
    assert steps.rest() == 0.25
    assert runner.busy == []
    runner.gates[0].set()
    steps.mask(Masks(0, 0, [], []))
    outbox.wait_for(1)
    assert steps.rest() is not None
    assert len(runner.busy) == 1
    steps.close()


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("wrong", ["masks of another step", "masks that nobody waits for", "a plan before the masks"])
def test_what_comes_out_of_turn_ends_the_worker(
    runner: ScriptedRunner, outbox: Outbox, ahead: bool, wrong: str
) -> None:
    steps = _ahead(runner, outbox) if ahead else SyncExecutor(runner, outbox)  # type: ignore[arg-type]
    match wrong:
        case "masks of another step":
            steps.take(_masked(4))
            steps.mask(Masks(0, 5, [], []))
            said = "the worker failed: masks of step 5 came, those of step 4 were expected"
        case "masks that nobody waits for":
            steps.mask(Masks(0, 5, [], []))
            said = "the worker failed: masks of step 5 came, none were expected"
        case _:
            steps.take(_masked(4))
            steps.take(_plan(5))
            said = "the worker failed in step 5: ValueError"
    assert outbox.wait_for(1) == [Failed(said)]
    assert steps.failed
    steps.take(_plan(6))
    steps.mask(Masks(0, 6, [], []))
    assert outbox.sent == [Failed(said)]


class CountedTurns:
    look_seconds = 0.002

    def __init__(self, outbox: Outbox) -> None:
        self.calls: list[str] = []
        self.wanted = False
        self._outbox = outbox

    def begin(self) -> None:
        self.calls.append("begin")

    def end(self) -> None:
        self.calls.append(f"end before result {len(self._outbox.sent)}")

    def is_wanted(self) -> bool:
        return self.wanted

    def yield_device(self) -> None:
        raise AssertionError("only a long step has parts")


@pytest.mark.parametrize("ahead", [True, False])
def test_the_device_is_ours_from_the_launch_of_a_step_to_its_end(
    runner: ScriptedRunner, outbox: Outbox, ahead: bool
) -> None:
    lease = CountedTurns(outbox)
    steps = AsyncExecutor(runner, runner, outbox, lease) if ahead else SyncExecutor(runner, outbox, lease)  # type: ignore[arg-type]
    for number in range(3):
        runner.gates[number] = threading.Event()
        runner.gates[number].set()
    steps.take(_plan(0))
    outbox.wait_for(1)
    assert lease.calls == ["begin", "end before result 0"]
    steps.take(_masked(1))
    between = ["begin"] if ahead else ["begin", "end before result 1", "begin"]
    assert lease.calls[2:] == (between if ahead else between[:2]), "a host is idle while it waits for masks"
    steps.mask(Masks(0, 1, [], []))
    outbox.wait_for(2)
    assert lease.calls[2:] == [*between, "end before result 1"]
    steps.close()


def test_a_step_that_waits_for_its_masks_lends_the_device_to_who_waits_for_it_once_its_forward_has_run(
    runner: ScriptedRunner, outbox: Outbox
) -> None:
    lease = CountedTurns(outbox)
    steps = AsyncExecutor(runner, runner, outbox, lease)  # type: ignore[arg-type]
    steps.take(_masked(0))
    runner.forwarded.set()
    assert steps.rest() == 0.002
    assert lease.calls == ["begin"], "nobody else wants it"
    runner.forwarded.clear()
    lease.wanted = True
    assert steps.rest() == 0.002
    assert lease.calls == ["begin"], "the forward still runs"
    runner.forwarded.set()
    assert steps.rest() == 0.25
    assert lease.calls == ["begin", "end before result 0"]
    assert steps.rest() == 0.25
    runner.gates[0].set()
    steps.mask(Masks(0, 0, [], []))
    outbox.wait_for(1)
    assert lease.calls == ["begin", "end before result 0", "begin", "end before result 0"]
    assert runner.masked == [0]
    steps.take(_masked(1))
    runner.gates[1].set()
    steps.mask(Masks(0, 1, [], []))
    outbox.wait_for(2)
    assert lease.calls[4:] == ["begin", "end before result 1"], "masks that come in time cost no turn"
    steps.close()


def test_a_device_that_breaks_while_masks_are_waited_for_ends_the_worker(
    runner: ScriptedRunner, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = CountedTurns(outbox)
    lease.wanted = True
    steps = AsyncExecutor(runner, runner, outbox, lease)  # type: ignore[arg-type]
    steps.take(_masked(0))

    def broken() -> bool:
        raise RuntimeError("device")

    monkeypatch.setattr(runner.forwarded, "reached", broken)
    assert steps.rest() == 0.0
    assert steps.failed
    assert outbox.sent == [Failed("the worker failed between two steps: RuntimeError")]
