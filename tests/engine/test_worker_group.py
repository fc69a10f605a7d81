"""Several workers as one: which messages go to which, whose results count, and the loss of one."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest

from stentor.engine.core.worker_group import WorkerGroup
from stentor.engine.core.worker_life import WorkerLost
from stentor.protocols.ipc.actors import Failed, Progress, StartWorker, WorkerReady
from stentor.protocols.ipc.codec import decode_worker
from stentor.protocols.ipc.config import WorkerConfig
from stentor.protocols.ipc.steps import StepPlan, StepResult
from stentor.tests.engine.unkillable import Unkillable, unkillable
from stentor.tests.engine.worker_stage import LIMITS, READY, Played, ignore, played

pytestmark = pytest.mark.anyio

PLAN = StepPlan(0, 0, [], [], [])
RESULT = StepResult(0, 0, [], None, [], 0.0)
CONFIG = WorkerConfig("m", tensor_parallel_size=2)


@asynccontextmanager
async def group_of(size: int) -> AsyncIterator[tuple[WorkerGroup, list[Played]]]:
    async with AsyncExitStack() as stack:
        members = [await stack.enter_async_context(played()) for _ in range(size)]
        group = WorkerGroup([member.life for member in members])
        yield group, members
        assert await group.end(0.0)


async def loss_of(group: WorkerGroup) -> WorkerLost:
    with anyio.fail_after(60):
        async with group.guarded():
            try:
                while True:
                    await group.receive()
            except WorkerLost as lost:
                return lost
    raise AssertionError("it went on")


def all_dead(members: Sequence[Played]) -> bool:
    return all(member.process.returncode is not None for member in members)


async def test_all_get_each_plan_and_the_first_is_heard() -> None:
    async with group_of(3) as (group, members):
        await group.send(PLAN)
        assert [await member.plans() for member in members] == [[PLAN]] * 3
        members[0].send(RESULT)
        assert await group.receive() == [RESULT]


async def test_each_is_started_as_its_rank_and_all_are_as_ready_as_the_least() -> None:
    reported: list[Progress] = []

    async def tell(progress: Progress) -> None:
        reported.append(progress)

    async with group_of(2) as (group, members):
        ready: list[WorkerReady] = []

        async def start() -> None:
            ready.append(await group.start(CONFIG, tell))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(start)
            for rank, member in enumerate(members):
                (frame,) = await member.worker.receive()
                message = decode_worker.decode(frame)
                assert isinstance(message, StartWorker)
                assert message.config.rank == rank
            for member, done in ((members[0], 1), (members[1], 0), (members[0], 9), (members[1], 4)):
                member.send(Progress("loading weights", done, 9))
                await anyio.sleep(0.02)
            members[1].send(WorkerReady(50, 300, [], [], LIMITS))
            members[0].send(READY)
    assert [progress.done for progress in reported if progress.phase == "loading weights"] == [1, 0, 4]
    assert (ready[0].num_blocks, ready[0].max_model_len) == (50, 256)
    assert ready[0].notes == ["2 workers split the model; memory is that of the first"]


@pytest.mark.parametrize("rank", [0, 1])
async def test_the_death_of_one_ends_all(rank: int) -> None:
    async with group_of(2) as (group, members):
        members[rank].process.kill()
        lost = await loss_of(group)
        assert str(lost) == "the worker process was lost: killed by SIGKILL"
        assert not lost.final
        assert all_dead(members)


@pytest.mark.parametrize("rank", [0, 1])
async def test_one_that_cannot_go_on_ends_all_and_says_why(rank: int) -> None:
    async with group_of(2) as (group, members):
        members[rank].send(Failed("the worker failed in step 3: MemoryError"))
        assert str(await loss_of(group)) == "the worker failed in step 3: MemoryError"
        assert all_dead(members)


@pytest.mark.parametrize("rank", [0, 1])
async def test_the_loss_of_a_peer_is_not_told_in_place_of_its_cause(rank: int) -> None:
    async with group_of(2) as (group, members):
        members[rank].send(Failed("lost another", of_peer=True))
        async with anyio.create_task_group() as tasks:

            async def die() -> None:
                await anyio.sleep(0.1)
                members[1 - rank].process.kill()

            tasks.start_soon(die)
            lost = await loss_of(group)
        assert group.verdict in (None, str(lost)), "no other reason is told meanwhile"
        assert str(lost) == "the worker process was lost: killed by SIGKILL"
        assert all_dead(members)


async def test_where_no_cause_is_found_the_loss_of_a_peer_is_told() -> None:
    async with group_of(2) as (group, members):
        for member in members:
            member.send(Failed("lost another", of_peer=True))
        assert str(await loss_of(group)) == "lost another"
        assert all_dead(members)


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_death_while_starting_is_the_cause_and_no_refusal(rank: int) -> None:
    async with group_of(2) as (group, members):
        losses: list[WorkerLost] = []

        async def start() -> None:
            try:
                await group.start(CONFIG, ignore)
            except WorkerLost as lost:
                losses.append(lost)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(start)
                members[1 - rank].send(Failed("lost another", of_peer=True))
                await anyio.sleep(0.1)
                members[rank].process.kill()
        assert "killed by SIGKILL" in str(losses[0])
        assert not losses[0].final


async def test_workers_that_disagree_are_not_taken() -> None:
    async with group_of(2) as (group, members):
        members[0].send(READY)
        members[1].send(WorkerReady(64, 256, [], [], LIMITS, ()))
        with pytest.raises(WorkerLost, match=r"the worker of rank 1 .* keeps \(\); that of rank 0"):
            await group.start(CONFIG, ignore)


async def test_a_group_that_is_killed_dies_whole_and_says_what_for() -> None:
    async with group_of(2) as (group, members):
        group.kill("it hung", hung=True)
        lost = await loss_of(group)
        assert (str(lost), lost.hung, group.verdict) == ("it hung", True, "it hung")
        assert all_dead(members)


async def test_the_loss_of_one_that_does_not_die_says_so() -> None:
    with unkillable(Unkillable) as child:
        async with played() as first, played(child) as second:
            group = WorkerGroup([first.life, second.life])
            first.process.kill()
            lost = await loss_of(group)
            assert lost.stuck
            assert str(lost) == "the worker process was lost: killed by SIGKILL; the process does not die"
            assert not await group.end(0.0)


async def test_results_of_one_that_is_not_heard_end_the_group() -> None:
    async with group_of(2) as (group, members):
        members[1].send(RESULT)
        assert "not the first of its group" in str(await loss_of(group))
