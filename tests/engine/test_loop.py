"""The engine loop between a client and a worker that are played by the test."""

import anyio
import msgspec
import pytest

from stentor.engine.channel import PeerDied
from stentor.engine.channel.pieces import PromptParts, result_frames
from stentor.engine.core.loop import EngineLoop
from stentor.engine.core.worker_life import WorkerLost
from stentor.protocols.ipc.actors import (
    Abort,
    Control,
    ControlDone,
    ControlOperation,
    Failed,
    Finished,
    PromptDone,
    SequenceExperts,
    Shutdown,
    Submit,
    TokensBatch,
)
from stentor.protocols.ipc.codec import decode_client, encoder
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import PromptLogprobs, RowExperts, StepResult, TokenLogprobs
from stentor.tests.engine.loop_stage import Received, stage
from stentor.tests.engine.odd_worker import answer

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


async def test_one_step_is_always_ahead_of_the_worker() -> None:
    with stage() as on:
        on.submit(0, tokens=8)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(on.loop.run)
            first, second = await on.plans(2)
            assert (first.step, second.step) == (0, 1)
            with anyio.move_on_after(0.05) as waited:
                await on.plans(1)
            assert waited.cancelled_caught, "two steps ahead"
            await on.worker.send(encoder.encode(answer(first)))
            (third,) = await on.plans(1)
            assert third.step == 2
            tasks.cancel_scope.cancel()


async def test_a_crowd_of_requests_does_not_hold_up_those_that_run() -> None:
    with stage() as on:
        on.submit(0, tokens=200)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(on.loop.run)
            first, _ = await on.plans(2)
            for rid in range(1, 501):
                on.submit(rid, tokens=200)
            assert on.worker.try_send(encoder.encode(answer(first)))
            (third,) = await on.plans(1)
            assert third.step == 2
            assert on.loop._scheduler.stats().waiting < 250, "the step waited for the whole crowd"
            with anyio.fail_after(60):
                while on.loop._scheduler.stats().waiting < 493:
                    await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()


async def test_what_one_round_brings_goes_to_the_client_in_one_message() -> None:
    with stage() as on:
        on.submit(0, tokens=9)
        on.submit(1, tokens=9)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(on.loop.run)
            plan, _ = await on.plans(2)
            on.client.try_receive()
            on.submit(2, tokens=9, prompt=1000)
            assert on.client.try_send(encoder.encode(Abort(1, -1)))
            assert on.worker.try_send(encoder.encode(answer(plan)))
            received = Received()
            with anyio.fail_after(60):
                await received.until_ended(on.client, 2)
            assert received.batches == 1
            assert received.tokens[0] == [4]
            assert (received.ends[1].reason, received.ends[2].reason) == ("abort", "error")
            tasks.cancel_scope.cancel()


async def test_tokens_that_came_with_the_workers_failure_are_delivered_before_the_error() -> None:
    with stage() as on:
        on.submit(0, tokens=1)
        on.submit(1, tokens=9)
        received = Received()
        outcome: list[BaseException] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_outcome_of, on.loop, outcome)
            plan, _ = await on.plans(2)
            # both are there before the loop reads again
            assert on.worker.try_send(encoder.encode(answer(plan)))
            assert on.worker.try_send(encoder.encode(Failed("out of memory")))
        assert isinstance(outcome[0], WorkerLost)
        received.take_all(on.client)
        assert received.tokens == {0: [4], 1: [4]}
        assert received.ends[0].reason == "length"
        assert received.ends[1] == Finished(1, 0, "error", None, "out of memory", "engine")


async def test_a_worker_found_dead_when_a_plan_is_sent_is_not_taken_for_the_client() -> None:
    with stage() as on:
        async with anyio.create_task_group() as tasks:
            outcome: list[BaseException] = []
            tasks.start_soon(_outcome_of, on.loop, outcome)
            await anyio.wait_all_tasks_blocked()
            # what happens when the death is seen while a plan is about to be sent
            on.loop.worker._first._endpoint._note_death()
            on.submit(0, tokens=5)
            await anyio.wait_all_tasks_blocked()
            on.process.kill()
        (error,) = outcome
        assert isinstance(error, WorkerLost)
        assert "killed by SIGKILL" in str(error)


async def test_a_result_in_parts_is_taken_as_one_and_passed_on_in_pieces() -> None:
    with stage() as on:
        params = SamplingParams(max_tokens=1, prompt_logprobs=20)
        assert on.client.try_send(encoder.encode(Submit(0, list(range(40)), params, [1], 0, "", 0.0)))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(on.loop.run)
            (plan,) = await on.plans(1)
            entries = [TokenLogprobs(token, -1.0, 1, [(each, -2.0) for each in range(20)]) for token in range(1, 40)]
            result = StepResult(plan.epoch, plan.step, [7], None, [PromptLogprobs(0, 1, entries)], 0.0)
            frames = [*result_frames(result, 1000)]
            assert len(frames) > 5
            for frame in frames:
                await on.worker.send(frame)
            parts = PromptParts()
            done: list[PromptDone] = []
            with anyio.fail_after(60):
                while not done:
                    for frame in await on.client.receive():
                        if isinstance(batch := decode_client.decode(frame), TokensBatch):
                            for part in batch.parts:
                                parts.add(part)
                            done += batch.prompts
            assert parts.joined(done[0]).logprobs == [None, *entries]
            tasks.cancel_scope.cancel()


async def test_the_experts_of_a_prompts_first_chunk_reach_the_client() -> None:
    with stage() as on:
        params = SamplingParams(max_tokens=1, routed_experts=0)
        assert on.client.try_send(encoder.encode(Submit(0, list(range(100)), params, [1], 0, "", 0.0)))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(on.loop.run)
            first, _ = await on.plans(2)
            (row,) = first.rows
            routed = [RowExperts(row.slot, row.start, row.count, bytes(row.count))]
            await on.worker.send(encoder.encode(msgspec.structs.replace(answer(first), routed=routed)))
            told: list[SequenceExperts] = []
            with anyio.fail_after(60):
                while not told:
                    for frame in await on.client.receive():
                        if isinstance(batch := decode_client.decode(frame), TokensBatch):
                            told += batch.experts
            assert [(each.index, each.start, each.count) for each in told] == [(-1, 0, row.count)]
            tasks.cancel_scope.cancel()


async def test_what_is_too_large_for_a_frame_fails_its_request_alone() -> None:
    with stage(max_frame=500) as on:
        for rid in range(3):
            on.submit(rid, tokens=9)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(on.loop.run)
            plan, _ = await on.plans(2)
            tops = [(token, -2.0) for token in range(100)]
            logprobs = [None, TokenLogprobs(4, -1.0, 1, tops), None]
            await on.worker.send(encoder.encode(StepResult(plan.epoch, plan.step, [4, 4, 4], logprobs, [], 0.0)))
            received = Received()
            with anyio.fail_after(60):
                await received.until_ended(on.client, 1)
            assert received.ends.keys() == {1}
            assert (received.ends[1].reason, received.ends[1].message) == (
                "error",
                "what the request brings is larger than the engine can pass on",
            )
            assert received.tokens == {0: [4], 2: [4]}
            tasks.start_soon(on.work)
            with anyio.fail_after(60):
                await received.until_ended(on.client, 1)
            tasks.cancel_scope.cancel()


async def test_results_that_a_worker_sent_before_it_died_are_delivered() -> None:
    with stage() as on:
        on.submit(0, tokens=9)
        outcome: list[BaseException] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_outcome_of, on.loop, outcome)
            first, second = await on.plans(2)
            assert on.worker.try_send(encoder.encode(answer(first)))
            assert on.worker.try_send(encoder.encode(answer(second)))
            on.process.kill()
        received = Received()
        received.take_all(on.client)
        assert received.tokens == {0: [4, 5]}
        assert received.ends[0].reason == "error"


async def _outcome_of(loop: EngineLoop, outcome: list[BaseException]) -> None:
    try:
        await loop.run()
    except (WorkerLost, PeerDied) as error:
        outcome.append(error)


async def test_a_client_that_does_not_read_holds_the_loop_back_and_then_gets_everything() -> None:
    with stage(client_capacity=1 << 10) as on:
        for rid in range(8):
            on.submit(rid, tokens=60)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(on.loop.run)
            tasks.start_soon(on.work)
            still = steps = 0
            while still < 100 or not steps:  # turns of all that runs in this process, without a step
                await anyio.sleep(0)
                before, steps = steps, on.loop._scheduler.stats().steps
                still = still + 1 if steps == before else 0
            assert steps < 60, "the ring never filled"
            received = Received()
            with anyio.fail_after(60):
                await received.until_ended(on.client, 8)
            assert received.tokens == {rid: list(range(4, 64)) for rid in range(8)}
            tasks.cancel_scope.cancel()


async def test_an_abort_ends_the_request_and_gives_its_blocks_back() -> None:
    with stage() as on:
        on.submit(0, tokens=200)
        received = Received()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(on.loop.run)
            tasks.start_soon(on.work)
            await on.client.receive()
            await on.client.send(encoder.encode(Abort(0, -1)))
            with anyio.fail_after(60):
                await received.until_ended(on.client, 1)
                while received.stats is None or received.stats.free_blocks != 64:
                    for frame in await on.client.receive():
                        received.take(decode_client.decode(frame))
            tasks.cancel_scope.cancel()
        assert received.ends[0].reason == "abort"
        assert received.stats is not None
        assert received.stats.running == received.stats.waiting == 0


async def test_a_pause_is_answered_once_all_that_was_in_flight_is_told_and_no_step_follows() -> None:
    with stage() as on:

        async def control(number: int, operation: ControlOperation) -> None:
            await on.client.send(encoder.encode(Control(number, operation)))

        heard: list[int | str] = []

        async def hear(until: int) -> None:
            while until not in heard:
                for frame in await on.client.receive():
                    match decode_client.decode(frame):
                        case TokensBatch(tokens=gained):
                            heard.extend("token" for each in gained for _ in each.tokens)
                        case ControlDone(number=number):
                            heard.append(number)

        on.submit(0, tokens=6)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(on.loop.run)
            first, second = await on.plans(2)
            await control(1, "pause")
            await control(2, "reset_prefix_cache")
            await on.worker.send(encoder.encode(answer(first)))
            await on.worker.send(encoder.encode(answer(second)))
            with anyio.fail_after(60):
                await hear(2)
            assert heard == ["token", "token", 1, 2]
            on.submit(1, tokens=2)
            await control(3, "recompute")
            with anyio.fail_after(60):
                await hear(3)
            assert on.loop._scheduler.in_flight == 0, "a step while it is paused"
            await control(4, "resume")
            tasks.start_soon(on.work)
            received = Received()
            with anyio.fail_after(60):
                while len(received.ends) < 2:
                    for frame in await on.client.receive():
                        message = decode_client.decode(frame)
                        if not isinstance(message, ControlDone):
                            received.take(message)
            assert [len(received.tokens[rid]) for rid in (0, 1)] == [4, 2], "with the two from before the pause"
            tasks.cancel_scope.cancel()


async def test_a_request_that_can_never_run_is_refused_with_a_terminal_message() -> None:
    with stage(num_blocks=2) as on:
        on.submit(0, tokens=100)
        received = Received()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(on.loop.run)
            with anyio.fail_after(60):
                await received.until_ended(on.client, 1)
            tasks.cancel_scope.cancel()
        assert received.ends[0].reason == "error"
        assert "KV cache" in str(received.ends[0].message)


async def test_the_loop_ends_when_told_to() -> None:
    with stage() as on:
        assert on.client.try_send(encoder.encode(Shutdown()))
        with anyio.fail_after(60):
            await on.loop.run()


async def test_a_client_that_closed_its_end_ends_the_loop() -> None:
    with stage() as on:
        on.client.close()
        with anyio.fail_after(60), pytest.raises(PeerDied):
            await on.loop.run()


async def test_a_result_that_nobody_asked_for_is_an_error_and_not_ignored() -> None:
    with stage() as on:
        assert on.worker.try_send(encoder.encode(StepResult(0, 5, [], None, [], 0.0)))
        with pytest.raises(ExceptionGroup) as raised:
            await on.loop.run()
        assert raised.group_contains(ValueError, match="step 5")
