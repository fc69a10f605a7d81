"""When a step is overdue, by a clock that the test sets."""

import msgspec
import pytest

from stentor.engine.core.watchdog import StepWatch
from stentor.protocols.ipc.actors import Profile, Profiled
from stentor.protocols.ipc.adapters import AdapterLoaded, AdapterRef, DropAdapter, LoadAdapter, ReadsAdapters
from stentor.protocols.ipc.config import RecoveryConfig
from stentor.protocols.ipc.inputs import ArenaRef
from stentor.protocols.ipc.steps import EncodeJob, RowStep, StepPlan


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def plan(step: int, *counts: int, start: int = 100) -> StepPlan:
    rows = [RowStep(slot, start, count, [], True) for slot, count in enumerate(counts)]
    return StepPlan(0, step, [], [], rows)


def watching(clock: Clock, *, seconds: float = 10.0, factor: float = 20.0) -> StepWatch:
    return StepWatch(RecoveryConfig(watchdog_seconds=seconds, watchdog_factor=factor), clock)


def left(watch: StepWatch, clock: Clock) -> float:
    assert watch.deadline is not None
    return watch.deadline - clock.now


def warm(watch: StepWatch, clock: Clock, seconds: float, *counts: int, steps: int = 40) -> None:
    for step in range(steps):
        watch.sent(plan(step, *counts))
        clock.now += seconds
        watch.completed(step)


def test_windows_of_audio_count_as_what_they_cost() -> None:
    clock = Clock()
    watch = watching(clock)
    hearing = msgspec.structs.replace(plan(0, 1), encode=[EncodeJob(0, ArenaRef(0, 0)), EncodeJob(1, ArenaRef(0, 0))])
    watch.sent(hearing)
    assert left(watch, clock) > 10 + 20 * 14, "nobody knows yet how long a window takes"
    clock.now += 6.0
    watch.completed(0)
    for step in range(1, 5):
        watch.sent(msgspec.structs.replace(hearing, step=step, encode=hearing.encode[:1]))
        clock.now += 3.0
        watch.completed(step)
    watch.sent(msgspec.structs.replace(hearing, step=5))
    assert left(watch, clock) == pytest.approx(10 + 20 * 6, rel=0.01)


def test_nothing_in_flight_is_never_overdue() -> None:
    clock = Clock()
    watch = watching(clock)
    assert watch.deadline is None
    warm(watch, clock, 0.01, 1)
    assert watch.deadline is None
    watch.sent(plan(40, 1))
    watch.lost()
    assert watch.deadline is None
    assert watch.oldest is None


def test_a_timeout_of_nought_is_none() -> None:
    clock = Clock()
    watch = watching(clock, seconds=0.0)
    watch.sent(plan(0, 1))
    assert watch.deadline is None


@pytest.mark.parametrize("counts", [(1,) * 32, (256,), (64, 1, 1, 1)])
def test_a_step_like_those_before_gets_the_floor_and_the_multiple_of_what_they_took(counts: tuple[int, ...]) -> None:
    clock = Clock()
    watch = watching(clock)
    warm(watch, clock, 0.03, *counts)
    watch.sent(plan(40, *counts))
    assert left(watch, clock) == pytest.approx(10 + 20 * 0.03, rel=0.01)


def test_more_work_gets_more_time() -> None:
    clock = Clock()
    watch = watching(clock)
    warm(watch, clock, 0.1, 100)
    watch.sent(plan(40, 400))
    wide = left(watch, clock)
    assert wide == pytest.approx(10 + 20 * 0.4, rel=0.1)
    watch.lost()
    watch.sent(plan(41, 400, start=20_000))
    assert left(watch, clock) > wide + 8, "attention reads more"


def test_prompts_do_not_make_decoding_seem_slow_nor_the_other_way_round() -> None:
    clock = Clock()
    watch = watching(clock)
    warm(watch, clock, 0.5, 1)
    warm(watch, clock, 0.5, 500)
    watch.sent(plan(40, 500))
    assert left(watch, clock) == pytest.approx(10 + 20 * 0.5, rel=0.05)
    watch.lost()
    watch.sent(plan(41, 1))
    assert left(watch, clock) == pytest.approx(10 + 20 * 0.5, rel=0.05)


def test_slices_of_encodings_do_not_make_prompts_seem_quick() -> None:
    clock = Clock()
    watch = watching(clock)
    warm(watch, clock, 0.5, 500)
    sliced = [EncodeJob(0, ArenaRef(0, 0), sliced=True)]
    for step in range(40, 80):
        watch.sent(msgspec.structs.replace(plan(step, 1), encode=sliced))
        clock.now += 0.01
        watch.completed(step)
    watch.sent(plan(80, 500))
    assert left(watch, clock) == pytest.approx(10 + 20 * 0.5, rel=0.05)


def test_before_anything_is_known_a_large_model_on_a_slow_machine_has_time() -> None:
    clock = Clock()
    watch = watching(clock)
    watch.sent(plan(0, 512))
    assert 180 < left(watch, clock) < 320
    watch.lost()
    watch.sent(plan(1, 1))
    assert left(watch, clock) < 12


def test_time_counts_from_when_a_step_became_the_oldest() -> None:
    clock = Clock()
    watch = watching(clock)
    warm(watch, clock, 0.01, 1)
    watch.sent(plan(40, 1))
    clock.now += 4
    watch.sent(plan(41, 1))
    assert left(watch, clock) == pytest.approx(6.2, abs=0.01)
    clock.now += 4
    watch.completed(40)
    assert watch.oldest == 41
    assert left(watch, clock) > 10


def test_a_slow_stretch_is_forgotten() -> None:
    clock = Clock()
    watch = watching(clock)
    warm(watch, clock, 5.0, 1)
    warm(watch, clock, 0.01, 1, steps=400)
    watch.sent(plan(0, 1))
    assert left(watch, clock) < 11


def test_a_result_that_nobody_asked_for_is_left_to_others() -> None:
    clock = Clock()
    watch = watching(clock)
    watch.completed(3)
    watch.sent(plan(0, 1))
    watch.completed(3)
    assert watch.oldest == 0


def _masked(step: int) -> StepPlan:
    return StepPlan(0, step, [], [], [RowStep(0, 100, 1, [], True), RowStep(1, 100, 1, [], True)], [0])


def test_masks_are_waited_for_as_long_as_a_step_and_the_worker_has_its_time_once_they_came() -> None:
    clock = Clock()
    watch = watching(clock)
    warm(watch, clock, 0.03, 1, 1)
    watch.sent(_masked(40))
    assert left(watch, clock) == pytest.approx(10 + 20 * 0.03, rel=0.01)
    clock.now += 11
    assert watch.overdue
    assert watch.lacks_masks
    watch.masked(39)
    assert watch.lacks_masks, "masks of another step"
    watch.masked(40)
    assert not watch.overdue
    assert left(watch, clock) == pytest.approx(10 + 20 * 0.03, rel=0.01)
    clock.now += 0.03
    watch.completed(40)
    watch.sent(plan(41, 1, 1))
    assert left(watch, clock) == pytest.approx(10 + 20 * 0.03, rel=0.01), "the wait was not the worker's"


def test_masks_are_waited_for_by_the_oldest_step_alone() -> None:
    clock = Clock()
    watch = watching(clock)
    watch.sent(plan(0, 1))
    watch.sent(_masked(1))
    assert not watch.lacks_masks
    watch.completed(0)
    assert watch.lacks_masks
    watch.masked(1)
    assert not watch.lacks_masks


def _load(number: int) -> LoadAdapter:
    return LoadAdapter(AdapterRef(number, "poet", "/adapters/poet"))


def test_a_worker_that_reads_adapters_has_as_long_as_it_says_that_it_reads() -> None:
    clock = Clock()
    watch = watching(clock)
    watch.ordered(_load(1))
    watch.ordered(_load(2))
    for _ in range(100):
        assert left(watch, clock) == pytest.approx(10 + 20)
        clock.now += 25
        watch.answered(ReadsAdapters())
    watch.answered(AdapterLoaded(1))
    clock.now += 30
    assert watch.overdue, "the other one is not read"
    assert watch.owed == "reading an adapter"
    watch.answered(AdapterLoaded(2))
    assert watch.deadline is None
    watch.ordered(DropAdapter(1))
    assert watch.deadline is None, "nobody answers it"


def test_a_profile_has_minutes_and_an_end() -> None:
    clock = Clock()
    watch = watching(clock)
    watch.ordered(_load(1))
    watch.ordered(Profile(True))
    clock.now += 600
    assert not watch.overdue
    clock.now += 20
    assert watch.overdue
    assert watch.owed == "a profile"
    watch.answered(Profiled())
    assert watch.owed == "reading an adapter"
    watch.lost()
    assert watch.deadline is None, "it died with the worker"


def test_reading_adapters_gives_a_step_no_more_time_and_steps_give_it_to_reading() -> None:
    clock = Clock()
    watch = watching(clock)
    warm(watch, clock, 0.01, 1)
    watch.ordered(_load(1))
    clock.now += 29
    watch.sent(plan(40, 1))
    clock.now += 11
    watch.answered(ReadsAdapters())
    assert watch.overdue
    watch.completed(40)
    assert left(watch, clock) == pytest.approx(10 + 20), "a worker that steps lives"
