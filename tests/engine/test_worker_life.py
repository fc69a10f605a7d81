"""One worker's life, by a clock that the test moves and over processes that the test plays."""

import time
from dataclasses import dataclass, field

import anyio
import pytest

from stentor.engine.core import worker_life
from stentor.engine.core.entry import WorkerKeeper
from stentor.engine.core.worker_group import WorkerGroup
from stentor.engine.core.worker_life import WorkerLife, WorkerLost, _fail_after
from stentor.engine.core.worker_source import WorkerSource
from stentor.engine.processes.process import Child
from stentor.protocols.ipc.actors import Failed, Progress, StartWorker, WorkerReady
from stentor.protocols.ipc.codec import decode_worker, encoder
from stentor.protocols.ipc.config import RecoveryConfig, WorkerConfig
from stentor.protocols.ipc.steps import RowStep, StepPlan
from stentor.tests.engine.unkillable import Unkillable, unkillable
from stentor.tests.engine.worker_stage import LIMITS, READY, Clock, Played, ignore, played

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@dataclass
class Starting:
    clock: Clock = field(default_factory=Clock)
    ready: WorkerReady | None = None
    lost: WorkerLost | None = None

    async def start(self, life: WorkerLife) -> None:
        try:
            self.ready = await life.start(WorkerConfig("m"), ignore, clock=self.clock, sleep=self.clock.sleep)
        except WorkerLost as lost:
            self.lost = lost


@pytest.mark.parametrize(
    ("phase", "patience"), [(None, 120.0), ("loading weights", 300.0), ("compiling CPU kernels", 600.0)]
)
async def test_a_start_in_which_nothing_moves_is_ended_and_each_phase_has_its_time(
    phase: str | None, patience: float
) -> None:
    starting = Starting()
    async with played() as on, anyio.create_task_group() as tasks:
        tasks.start_soon(starting.start, on.life)
        assert isinstance(decode_worker.decode((await on.worker.receive())[0]), StartWorker)
        if phase is not None:
            for done in range(3):
                await starting.clock.run(100.0, 1.0)
                on.send(Progress(phase, done, 9))
                await anyio.sleep(0.02)
        await starting.clock.run(patience - 1.0, 1.0)
        assert on.process.returncode is None
        await starting.clock.run(2.0, 1.0)
        with anyio.fail_after(60):
            await on.process.wait()
            while starting.lost is None:
                await anyio.sleep(0.01)
    assert starting.lost is not None
    assert starting.lost.hung
    assert f"nothing moved for {patience:.0f} s in '{phase or 'starting the worker'}'" in str(starting.lost)


@pytest.mark.parametrize(("step_seconds", "patience"), [(1.5, 120.0), (60.0, 720.0), (0.0, None)])
async def test_a_start_has_as_many_times_longer_as_a_step_is_given_and_no_end_where_a_step_has_none(
    step_seconds: float, patience: float | None
) -> None:
    starting = Starting()
    config = RecoveryConfig(watchdog_seconds=step_seconds)
    async with played(patience=config.start_patience) as on, anyio.create_task_group() as tasks:
        tasks.start_soon(starting.start, on.life)
        await on.worker.receive()
        await starting.clock.run(3600.0 if patience is None else patience - 1.0, 1.0)
        assert on.process.returncode is None
        if patience is None:
            on.send(READY)
        else:
            await starting.clock.run(2.0, 1.0)
        with anyio.fail_after(60):
            while starting.lost is None and starting.ready is None:
                await anyio.sleep(0.01)
    assert (starting.lost is None) == (patience is None)


async def test_a_start_that_is_starved_has_ten_times_as_long_and_one_that_was_stopped_with_its_engine_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starting = Starting()
    monkeypatch.setattr(Child, "cpu_seconds", property(lambda _child: 0.02 * starting.clock.now))
    async with played() as on, anyio.create_task_group() as tasks:
        tasks.start_soon(starting.start, on.life)
        await on.worker.receive()
        await starting.clock.run(600.0, 1.0)
        await starting.clock.move(1e6)  # counts as one long look, of 2 s
        await starting.clock.run(570.0, 1.0)
        assert on.life.verdict is None
        await starting.clock.run(20.0, 1.0)
        with anyio.fail_after(60):
            while starting.lost is None:
                await anyio.sleep(0.01)
    assert starting.lost is not None
    assert starting.lost.hung


async def test_time_in_which_an_engine_was_stopped_is_no_time_of_a_worker_that_is_to_be_forked() -> None:
    stopped = False
    with _fail_after(1.5):
        while not stopped:
            time.sleep(2.0)
            stopped = True
            await anyio.sleep(0)
    with pytest.raises(TimeoutError), _fail_after(0.01):
        await anyio.sleep_forever()


async def test_a_process_that_is_not_there_in_time_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_life, "_SPAWN_SECONDS", 0.01)
    source = WorkerSource("none")
    monkeypatch.setattr(source, "start", lambda *_: anyio.sleep_forever())
    with pytest.raises(WorkerLost, match=r"^cannot start the worker process: it was not there within 0 s$"):
        await WorkerLife.spawn(source)


async def test_a_start_that_takes_long_and_says_so_is_left_alone() -> None:
    starting = Starting()
    async with played() as on, anyio.create_task_group() as tasks:
        tasks.start_soon(starting.start, on.life)
        await on.worker.receive()
        for done in range(20):
            on.send(Progress("loading weights", done, 20))
            await anyio.sleep(0.01)
            await starting.clock.run(250.0, 1.0)
        on.send(READY)
        with anyio.fail_after(60):
            while starting.ready is None:
                await anyio.sleep(0.01)
    assert starting.lost is None


async def test_a_worker_that_refuses_or_closes_its_end_is_lost_and_dead() -> None:
    for last in ("refuses", "closes"):
        starting = Starting()
        async with played() as on, anyio.create_task_group() as tasks:
            tasks.start_soon(starting.start, on.life)
            await on.worker.receive()
            if last == "refuses":
                on.send(Failed("no such model"))
            else:
                on.worker.close()
                on.process.terminate()
            with anyio.fail_after(60):
                while starting.lost is None:
                    await anyio.sleep(0.01)
            assert on.process.returncode is not None
        assert starting.lost is not None
        assert not starting.lost.hung
        assert starting.lost.final == (last == "refuses")
        assert ("no such model" if last == "refuses" else "killed by SIGTERM") in str(starting.lost)


async def test_a_worker_that_settles_for_less_than_the_first_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    async with played() as first, played() as second, played() as third:
        lives = [first, second, third]

        async def spawn(source: WorkerSource, rank: int, meeting_fd: int | None, patience: float) -> WorkerLife:
            return lives.pop(0).life

        monkeypatch.setattr(WorkerLife, "spawn", spawn)
        keeper = WorkerKeeper(WorkerSource("m"), WorkerConfig("m"))
        first.send(READY)
        second.send(WorkerReady(64, 128, [], [], LIMITS))
        third.send(WorkerReady(99, 300, [], [], LIMITS))
        await keeper.start(ignore)
        with pytest.raises(WorkerLost, match=r"sequences of 128 tokens.*first one took 256"):
            await keeper.start(ignore)
        assert second.process.returncode is not None
        _, ready = await keeper.start(ignore)
        assert ready.num_blocks == 99


@pytest.mark.parametrize("serves", [False, True])
async def test_workers_after_one_that_could_not_capture_a_graph_are_told_to_capture_none(
    serves: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so while it starts, or while it serves; that is one line in the engine's log."""
    failed = Failed("capturing a CUDA graph failed", graphs=True)
    async with played() as first, played() as second, played() as third:
        lives = [first, second, third]

        async def spawn(source: WorkerSource, rank: int, meeting_fd: int | None, patience: float) -> WorkerLife:
            return lives.pop(0).life

        async def results(group: WorkerGroup) -> None:
            while True:
                await group.receive()

        async def told(player: Played) -> bool:
            (start,) = [decode_worker.decode(frame) for frame in await player.worker.receive()]
            assert isinstance(start, StartWorker)
            return start.config.cuda_graphs

        monkeypatch.setattr(WorkerLife, "spawn", spawn)
        keeper = WorkerKeeper(WorkerSource("m"), WorkerConfig("m"))
        second.send(READY)
        third.send(READY)
        if serves:
            first.send(READY)
            group, _ = await keeper.start(ignore)
            first.send(failed)
            with pytest.raises(WorkerLost, match="capturing a CUDA graph failed") as lost:
                await results(group)
            assert lost.value.graphs
            assert not lost.value.final
        else:
            first.send(failed)
        await keeper.start(ignore)
        await keeper.start(ignore)
        assert [await told(each) for each in (first, second, third)] == [True, False, False]
        assert first.process.returncode is not None
    lines = [record.getMessage() for record in caplog.records if "without CUDA graphs" in record.getMessage()]
    assert lines == ["capturing a CUDA graph failed; the engine goes on without CUDA graphs"]


@pytest.mark.parametrize("end", ["is silent", "refuses"])
async def test_a_worker_that_cannot_be_killed_while_it_starts_is_lost_for_good(end: str) -> None:
    starting = Starting()
    with unkillable(Unkillable) as child:
        async with played(child) as on, anyio.create_task_group() as tasks:
            tasks.start_soon(starting.start, on.life)
            await on.worker.receive()
            if end == "refuses":
                on.send(Failed("no such model"))
            else:
                await starting.clock.run(121.0, 1.0)
            with anyio.fail_after(60):
                while starting.lost is None:
                    await anyio.sleep(0.001)
            assert not await on.life.end(5.0), "it is not waited for again"
    assert starting.lost is not None
    assert starting.lost.stuck
    assert starting.lost.final


async def test_a_message_to_a_worker_that_hangs_is_not_waited_for_any_longer_than_the_worker() -> None:
    with unkillable(Unkillable) as child:
        async with played(child) as on, anyio.create_task_group() as tasks:
            plan = StepPlan(0, 0, [], [], [RowStep(0, 0, 1, list(range(1 << 20)), True)])
            tasks.start_soon(on.life.send, encoder.encode(plan))
            await anyio.wait_all_tasks_blocked()
            on.life.kill("the worker process hung in a step: it was killed", hung=True)
            with anyio.fail_after(60), pytest.raises(WorkerLost, match="does not die"):
                await on.life.receive()
