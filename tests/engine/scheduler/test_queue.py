import random

import pytest

from stentor.engine.core.request import Request
from stentor.engine.core.scheduler.queue import WaitingQueue
from stentor.engine.core.sequence import Sequence, SequenceState, StateError
from stentor.protocols.ipc.actors import Submit
from stentor.protocols.ipc.sampling import SamplingParams


def sequence(number: int, arrival: float = 0.0) -> Sequence:
    submit = Submit(number, [1], SamplingParams(max_tokens=1), [0], 0, "", arrival)
    return Request(submit, number=number, max_model_len=8, aging_seconds=1.0).leader


def test_sequences_come_out_in_order_whatever_leaves_in_between() -> None:
    rng = random.Random(0)
    queue = WaitingQueue()
    waiting: list[Sequence] = []
    for number in range(500):
        new = sequence(number, rng.random())
        queue.push(new)
        waiting.append(new)
        if rng.random() < 0.4:
            gone = waiting.pop(rng.randrange(len(waiting)))
            queue.discard(gone)
        if waiting and rng.random() < 0.3:
            first = min(waiting, key=lambda each: each.order)
            assert queue.peek() is first
            queue.take_out(first)
            first.move((SequenceState.WAITING,), SequenceState.RUNNING)
            waiting.remove(first)
        queue.check_integrity()
        assert len(queue) == len(waiting)


def test_an_empty_queue_shows_nothing() -> None:
    assert WaitingQueue().peek() is None


def test_a_sequence_cannot_be_queued_twice() -> None:
    queue = WaitingQueue()
    only = sequence(3)
    queue.push(only)
    with pytest.raises(StateError, match=r"sequence 3\.0 is waiting, but must be held or loading or running or"):
        queue.push(only)


def test_a_sequence_that_has_ended_cannot_end_again() -> None:
    queue = WaitingQueue()
    only = sequence(3)
    queue.push(only)
    queue.discard(only)
    with pytest.raises(StateError, match="is finished, but must be waiting"):
        queue.discard(only)
