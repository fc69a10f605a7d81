"""The engine loop while what rows may draw follows from what they have drawn."""

import anyio
import pytest

from stentor.engine.core.grammar.vocabulary import pieces_of
from stentor.protocols.ipc.actors import (
    Submit,
    WorkerInbox,
)
from stentor.protocols.ipc.codec import decode_worker, encoder
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import Masks, StepPlan
from stentor.tests.engine.grammar.byte_vocabulary import EOS, TOKENS
from stentor.tests.engine.loop_stage import Received, Stage, stage
from stentor.tests.engine.odd_worker import answer

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


def _constrain(on: Stage, grammar: str, *, rid: int = 0, tokens: int = 8, seeds: tuple[int, ...] = (1,)) -> None:
    for piece in pieces_of(TOKENS, frozenset([EOS]), frozenset([EOS])):
        assert on.client.try_send(encoder.encode(piece))
    params = SamplingParams(max_tokens=tokens, eos_token_ids=(EOS,))
    submit = Submit(rid, [0, 1, 2, 3], params, list(seeds), 0, "", 0.0, grammar=grammar)
    assert on.client.try_send(encoder.encode(submit))


async def _messages(on: Stage, count: int) -> list[WorkerInbox]:
    found: list[WorkerInbox] = []
    while len(found) < count:
        found += map(decode_worker.decode, await on.worker.receive())
    return found


async def _work_with_masks(on: Stage) -> None:
    """Answers every plan once its masks are there."""
    held: StepPlan | None = None
    while True:
        for message in await _messages(on, 1):
            if isinstance(message, StepPlan):
                assert held is None
                if message.masked:
                    held = message
                    continue
                plan = message
            else:
                assert isinstance(message, Masks)
                assert held is not None
                assert message.step == held.step
                plan, held = held, None
            await on.worker.send(encoder.encode(answer(plan)))


async def _run_to_the_end(on: Stage, received: Received) -> None:
    """Of both sequences, with a worker that applies masks."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(on.loop.run)
        tasks.start_soon(_work_with_masks, on)
        with anyio.fail_after(60):
            await received.until_ended(on.client, 2)
        tasks.cancel_scope.cancel()


async def test_masks_of_a_step_go_as_soon_as_the_one_before_is_known_and_before_the_next_plan() -> None:
    with stage() as on:
        _constrain(on, "start: /[\\x04-\\x0c]{5}/")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(on.loop.run)
            with anyio.fail_after(60):
                first, masks, second = await _messages(on, 3)
                assert isinstance(first, StepPlan)
                assert isinstance(masks, Masks)
                assert isinstance(second, StepPlan)
                assert (first.masked, first.new[0].masked, second.masked) == ([0], True, [0])
                assert (masks.step, masks.rows[0].ids) == (0, list(range(4, 13)))
                with anyio.move_on_after(0.05) as waited:
                    await _messages(on, 1)
                assert waited.cancelled_caught, "masks of a step whose tokens are not known"
                await on.worker.send(encoder.encode(answer(first)))
                after = await _messages(on, 2)
                assert isinstance(after[0], Masks)
                assert isinstance(after[1], StepPlan)
                assert [after[0].step, after[1].step] == [1, 2]
            tasks.cancel_scope.cancel()


async def test_a_grammar_ends_its_sequence_without_a_token_to_say_so() -> None:
    received = Received()
    with stage() as on:
        _constrain(on, 'start: "\\x04\\x05\\x06"', seeds=(1,))
        on.submit(1, tokens=9)
        await _run_to_the_end(on, received)
    assert received.tokens == {0: [4, 5, 6], 1: list(range(4, 13))}
    assert (received.ends[0].reason, received.ends[1].reason) == ("stop", "length")


async def test_a_token_that_the_grammar_forbids_is_not_delivered_and_ends_its_sequence_alone() -> None:
    received = Received()
    with stage() as on:
        _constrain(on, 'start: "\\x04\\x05x"')
        on.submit(1, tokens=9)
        await _run_to_the_end(on, received)
    assert received.tokens == {0: [4, 5], 1: list(range(4, 13))}
    assert received.ends[0].reason == "error"
    assert "cannot be followed" in (received.ends[0].message or "")


async def test_a_grammar_that_cannot_be_used_is_refused_and_others_run() -> None:
    received = Received()
    with stage() as on:
        _constrain(on, "start: /a")
        on.submit(1, tokens=9)
        await _run_to_the_end(on, received)
    assert received.ends[0].reason == "error"
    assert "the grammar cannot be used" in (received.ends[0].message or "")
    assert received.ends[1].reason == "length"


async def test_the_vocabulary_makes_an_idle_engine_ready_for_grammars() -> None:
    with stage() as on:
        for piece in pieces_of(TOKENS, frozenset([EOS]), frozenset([EOS])):
            assert on.client.try_send(encoder.encode(piece))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(on.loop.run)
            with anyio.fail_after(60):
                while on.loop._grammar_queue._grammars._compiler is None:
                    await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
