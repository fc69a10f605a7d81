"""The queue's books: what is counted is given back once, whatever order things happen in."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from stentor.server.common.errors import Overloaded
from stentor.server.config.limits import OverloadConfig
from stentor.server.overload.queue_slots import MOST_SECONDS, AdmissionQueue, QueueSlot
from stentor.tests.examples import examples


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def queue(requests: int = 0, tokens: int = 0, clock: Clock | None = None) -> AdmissionQueue:
    config = OverloadConfig(max_queued_requests=requests, max_queued_tokens=tokens)
    return AdmissionQueue(config, clock or Clock())


def test_as_many_may_wait_as_the_limit_says_and_a_place_that_is_given_back_is_free() -> None:
    line = queue(requests=2)
    first, _second = line.enter(), line.enter()
    with pytest.raises(Overloaded, match="2 requests are waiting") as refused:
        line.enter()
    assert refused.value.code == "queue_full"
    first.close()
    line.enter()


def test_a_request_whose_prompts_are_processed_waits_no_more() -> None:
    line = queue(requests=1)
    queue_slot = line.enter()
    queue_slot.take(5)
    queue_slot.take(7)
    queue_slot.processed(5)
    assert (line.requests, line.tokens) == (1, 7)
    queue_slot.processed(7)
    assert (line.requests, line.tokens) == (0, 0)
    line.enter()


def test_tokens_beyond_the_limit_are_refused_unless_nobody_else_waits() -> None:
    line = queue(tokens=100)
    alone = line.enter()
    alone.take(60)
    alone.take(400)
    other = line.enter()
    with pytest.raises(Overloaded, match=r"Prompts of 460 tokens are waiting, .* more than the 100 "):
        other.take(1)
    alone.close()
    other.take(1)
    assert line.tokens == 1


def test_without_limits_nobody_is_refused() -> None:
    line = queue()
    for _ in range(5000):
        line.enter().take(1_000_000)
    assert line.requests == 5000


@pytest.mark.parametrize(("each_second", "expected"), [(0.1, 60), (1, 10), (4, 3), (1000, 1)])
def test_the_refused_are_told_to_come_when_a_tenth_of_the_queue_has_left(each_second: float, expected: int) -> None:
    clock = Clock()
    line = queue(requests=100, clock=clock)
    waiting = [line.enter() for _ in range(100)]
    for _ in range(max(20, int(60 * each_second))):
        clock.now += 1 / each_second
        waiting.pop(0).close()
        waiting.append(line.enter())
    with pytest.raises(Overloaded) as refused:
        line.enter()
    assert abs(refused.value.retry_after - expected) <= 1
    assert refused.value.headers == {"retry-after": str(refused.value.retry_after)}


def test_idle_hours_do_not_count_as_slow_ones() -> None:
    clock = Clock()
    line = queue(requests=10, clock=clock)
    for _ in range(1000):
        queue_slot = line.enter()
        clock.now += 0.1
        queue_slot.close()
    clock.now += 7200
    for _ in range(10):
        line.enter()
    with pytest.raises(Overloaded) as refused:
        line.enter()
    assert refused.value.retry_after == 1


def test_a_queue_that_does_not_move_is_told_to_be_so() -> None:
    clock = Clock()
    line = queue(requests=100, clock=clock)
    for _ in range(100):
        line.enter()
    clock.now += 1000
    with pytest.raises(Overloaded) as refused:
        line.enter()
    assert refused.value.retry_after == MOST_SECONDS


class Books(RuleBasedStateMachine):
    """Beside a plain list of what every request holds."""

    permits = Bundle("permits")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.queue = queue(requests=4, tokens=50, clock=self.clock)
        self.held: dict[QueueSlot, list[int]] = {}
        self.gone: set[QueueSlot] = set()

    @rule(target=permits)
    def enter(self) -> QueueSlot | None:
        waiting = len(self.held) - len(self.gone)
        try:
            queue_slot = self.queue.enter()
        except Overloaded:
            assert waiting == 4
            return None
        assert waiting < 4
        self.held[queue_slot] = []
        return queue_slot

    @rule(queue_slot=permits, tokens=st.integers(1, 60))
    def take(self, queue_slot: QueueSlot | None, tokens: int) -> None:
        if queue_slot is None or queue_slot in self.gone:
            return
        others = sum(sum(held) for one, held in self.held.items() if one is not queue_slot)
        fits = not others or others + sum(self.held[queue_slot]) + tokens <= 50
        try:
            queue_slot.take(tokens)
        except Overloaded:
            assert not fits
        else:
            assert fits
            self.held[queue_slot].append(tokens)

    @rule(queue_slot=permits)
    def processed(self, queue_slot: QueueSlot | None) -> None:
        if queue_slot is None or not self.held[queue_slot]:
            return
        queue_slot.processed(self.held[queue_slot].pop())
        if not self.held[queue_slot]:
            self.gone.add(queue_slot)

    @rule(queue_slot=permits)
    def close(self, queue_slot: QueueSlot | None) -> None:
        if queue_slot is not None:
            queue_slot.close()
            self.held[queue_slot] = []
            self.gone.add(queue_slot)

    @rule(queue_slot=consumes(permits))
    def close_again(self, queue_slot: QueueSlot | None) -> None:
        self.close(queue_slot)
        self.close(queue_slot)

    @rule(seconds=st.floats(0, 100))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def the_queue_counts_what_is_held(self) -> None:
        assert self.queue.requests == len(self.held) - len(self.gone)
        assert self.queue.tokens == sum(sum(held) for held in self.held.values())


Books.TestCase.settings = settings(max_examples=examples(30, 300), stateful_step_count=40, deadline=None)
TestBooks = Books.TestCase
