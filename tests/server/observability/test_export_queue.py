"""The queue in front of a collector: bounded, in batches, and never in anybody's way."""

import logging
import threading
from collections.abc import Iterator, Sequence

import pytest

from stentor.server.observability.export_queue import BATCH, ExportQueue


def test_all_that_fits_is_exported_in_order_and_in_batches() -> None:
    batches: list[list[int]] = []

    def export(batch: Sequence[int]) -> bool:
        batches.append(list(batch))
        return True

    queue = ExportQueue(export, "there", gather_seconds=0)
    for number in range(300):
        queue.put(number)
    queue.close(60)
    assert [number for batch in batches for number in batch] == list(range(300))
    assert max(map(len, batches)) <= BATCH
    assert (queue.exported, queue.dropped_full, queue.dropped_failed) == (300, 0, 0)


def test_putting_never_waits_and_what_finds_no_room_is_counted() -> None:
    held = threading.Event()

    def export(_batch: Sequence[int]) -> bool:
        return held.wait(60)

    queue = ExportQueue(export, "there", capacity=10, gather_seconds=0)
    for number in range(1000):
        queue.put(number)  # were it to wait, it would until the collector has failed
    assert queue.dropped_full >= 1000 - 10 - BATCH
    held.set()
    queue.close(60)
    assert (queue.exported, queue.dropped_failed) == (1000 - queue.dropped_full, 0)


def test_closing_waits_no_longer_than_it_may_and_takes_nothing_more() -> None:
    held = threading.Event()
    queue: ExportQueue[int] = ExportQueue(lambda _batch: held.wait(60), "there", gather_seconds=0)
    queue.put(1)
    queue.close(0.1)
    assert queue._thread.is_alive(), "it has waited for the collector"
    queue.put(2)
    assert queue.dropped_full == 1
    held.set()


def test_the_first_failure_is_said_and_the_recovery_too(caplog: pytest.LogCaptureFixture) -> None:
    answers: Iterator[bool | RuntimeError] = iter([False, RuntimeError("down"), True])
    done = threading.Semaphore(0)

    def export(_batch: Sequence[int]) -> bool:
        answer = next(answers)
        done.release()
        if isinstance(answer, RuntimeError):
            raise answer
        return answer

    queue = ExportQueue(export, "there", gather_seconds=0)
    with caplog.at_level(logging.INFO):
        for number in range(3):
            queue.put(number)
            assert done.acquire(timeout=60)
        queue.close(60)
    assert (queue.exported, queue.dropped_failed) == (1, 2)
    assert [record.getMessage() for record in caplog.records] == [
        "traces do not reach there and are dropped: it did not take them",
        "traces reach there again",
    ]
