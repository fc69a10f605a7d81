"""Masks and results larger than the rings that they go through: neither side waits for the other for ever."""

import threading
import time
from typing import Final

import anyio
import pytest

from stentor.engine.channel import ChannelClosed, Endpoint, PeerDied
from stentor.engine.core.grammar import token_sets
from stentor.engine.core.grammar.constraint import ParameterSets, TokenConstraint
from stentor.engine.core.scheduler import Scheduler
from stentor.protocols.ipc.actors import Ping, Submit
from stentor.protocols.ipc.codec import decode_worker, encoder
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import Masks, StepPlan, StepResult, TokenLogprobs
from stentor.tests.engine.loop_stage import Received, stage
from stentor.tests.engine.schedulers import CONFIG, ready_of

pytestmark = pytest.mark.anyio

SIZE: Final = 2_000_000
"""Of the vocabulary: the masks of eight rows are twice the ring."""
ROWS: Final = 8
TOKENS: Final = 5
TOPS: Final = [(token, -1.0) for token in range(20_000)]


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


class AllButOne:
    """A matcher that always allows another set, and never ends."""

    def __init__(self, forbidden: int, size: int) -> None:
        self._forbidden = forbidden
        self._size = size

    def consume(self, token: int) -> bool:
        self._forbidden += ROWS
        return True

    def allows(self, token: int) -> bool:
        return token != self._forbidden

    def accepting(self) -> bool:
        return False

    def stopped(self) -> bool:
        return False

    def error(self) -> str:
        return ""

    def allowed(self) -> int:
        return (1 << self._size) - 1 - (1 << self._forbidden)

    def copy(self) -> "AllButOne":
        return AllButOne(self._forbidden, self._size)


def _submit(scheduler: Scheduler, rid: int, size: int) -> None:
    params = SamplingParams(max_tokens=TOKENS)
    constraint = TokenConstraint(ParameterSets(params, size, []), AllButOne(rid, size), None)
    assert scheduler.submit(Submit(rid, [1, 2], params, [1], 0, "", 0.0), awaits=frozenset(["grammar"])) is None
    assert scheduler.prerequisites.constrain(rid, [constraint]) is None


def _work(engine: Endpoint, largest: list[int]) -> None:
    """A worker that computes on the thread that reads, and then says more than its ring holds."""
    held: StepPlan | None = None
    try:
        while True:
            for frame in engine.receive_blocking():
                message = decode_worker.decode(frame)
                if isinstance(message, StepPlan):
                    assert held is None, "a plan came before the masks of the step before"
                    held = message
                    time.sleep(0.02)  # its forward, during which it reads nothing
                    continue
                assert isinstance(message, Masks)
                assert held is not None
                assert message.step == held.step
                largest.append(len(frame))
                logprobs: list[TokenLogprobs | None] = [TokenLogprobs(1, -1.0, 1, TOPS) for _ in held.rows]
                result = StepResult(held.epoch, held.step, [1] * len(held.rows), logprobs, [], 0.0)
                held = None
                engine.send_blocking(encoder.encode(result))
    except (PeerDied, ChannelClosed):
        pass


async def test_masks_and_results_larger_than_their_rings_pass_each_other() -> None:
    received = Received()
    largest: list[int] = []
    with stage() as on:
        for rid in range(ROWS):
            _submit(on.loop._scheduler, rid, SIZE)
        assert on.client.try_send(encoder.encode(Ping()))  # the loop's first round
        worker = threading.Thread(target=_work, args=(on.worker, largest))
        worker.start()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(on.loop.run)
            with anyio.fail_after(30):
                await received.until_ended(on.client, ROWS)
            tasks.cancel_scope.cancel()
        on.loop.worker._first._endpoint.close()
        worker.join(60)
    assert max(largest) > 1 << 20
    assert received.tokens == dict.fromkeys(range(ROWS), [1] * TOKENS)
    assert {end.reason for end in received.ends.values()} == {"length"}


def test_more_than_one_frame_carries_ends_who_comes_last_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_sets, "MAX_BYTES", 3 * 1000 // 8)
    scheduler = Scheduler(
        ready_of(
            num_blocks=64,
            block_size=16,
            max_num_seqs=ROWS,
            max_num_batched_tokens=64,
            max_model_len=64,
        ),
        CONFIG,
    )
    for rid in range(5):
        _submit(scheduler, rid, 1000)
    plan = scheduler.plan(0.0)
    assert plan is not None
    masks, ended = scheduler.masks()
    assert len(masks.rows) == 3
    assert [(end.rid, end.reason) for end in ended.finished] == [(3, "error"), (4, "error")]
    assert "too many requests with grammars" in (ended.finished[0].message or "")
    drawn = StepResult(plan.epoch, plan.step, [1] * 5, None, [], 0.0)
    assert [gained.rid for gained in scheduler.complete(drawn, 0.0).tokens] == [0, 1, 2]
    scheduler.check_integrity()
