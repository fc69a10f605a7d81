"""Steps on a device that another process computes on as well."""

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from stentor.engine.sharing.lease import Member, peek
from stentor.engine.worker.device.lease import AloneOnDevice, SharedDevice
from stentor.tests.engine.lease_child import STEPS, inside
from stentor.tests.engine.test_lease import Members, ended, line_of

SLICE = 0.02


@pytest.fixture
def others() -> Iterator[Members]:
    """We are member 0 of a lease for two."""
    made = Members([1, 1], SLICE)
    yield made
    made.close()


def until(condition: object, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_steps_of_two_processes_never_overlap_and_both_get_on(others: Members) -> None:
    lease = SharedDevice(Member(others.fd, 0))
    child = others.start(1, "steps", 0)
    for _ in range(STEPS):
        lease.begin()
        inside(others.board)
        lease.end()
    ended(child)


def test_steps_that_overlap_keep_the_device_until_the_last_has_ended(others: Members) -> None:
    lease = SharedDevice(Member(others.fd, 0))
    lease.begin()
    lease.begin()
    child = others.start(1, "hold", 0)
    until(lambda: peek(others.fd)[1].waits)
    lease.end()
    time.sleep(2 * SLICE)
    assert peek(others.fd)[1].waits, "one of our steps still runs"
    lease.end()
    assert line_of(child) == "held"
    ended(child)


def test_who_launches_ahead_lets_others_in_once_they_have_waited_for_a_slice(others: Members) -> None:
    """A pipeline that is never empty would otherwise never let go."""
    lease = SharedDevice(Member(others.fd, 0))
    lease.begin()
    child = others.start(1, "hold", 60)
    until(lambda: peek(others.fd)[1].waits)
    time.sleep(2 * SLICE)
    launched = threading.Event()

    def launch() -> None:
        lease.begin()
        launched.set()

    thread = threading.Thread(target=launch)
    thread.start()
    time.sleep(2 * SLICE)
    assert not launched.is_set(), "the step before it has not ended"
    lease.end()
    assert line_of(child) == "held"
    assert not launched.is_set(), "it is the other's turn"
    until(lambda: peek(others.fd)[0].waits)
    child.kill()
    thread.join(60)
    assert launched.is_set()
    lease.end()


def test_nobody_waits_where_nobody_shares_the_device() -> None:
    lease = AloneOnDevice()
    lease.begin()
    lease.begin()
    lease.end()


def test_a_long_step_lets_others_in_between_its_parts_once_they_have_waited_for_a_slice(others: Members) -> None:
    lease = SharedDevice(Member(others.fd, 0))
    lease.begin()
    lease.yield_device(torch.device("cpu"))
    child = others.start(1, "hold", 0.0)
    until(lambda: peek(others.fd)[1].waits)
    time.sleep(2 * SLICE)
    lease.yield_device(torch.device("cpu"))
    assert line_of(child) == "held"
    ended(child)
    assert peek(others.fd)[0].holds, "and goes on"
    lease.end()
    assert not peek(others.fd)[0].holds


def test_a_step_between_its_halves_says_that_others_want_the_device_and_can_be_begun_once_more(
    others: Members,
) -> None:
    lease = SharedDevice(Member(others.fd, 0))
    lease.begin()
    assert not lease.is_wanted()
    child = others.start(1, "hold", 0.0)
    until(lease.is_wanted)
    lease.end()
    assert line_of(child) == "held"
    ended(child)
    assert not lease.is_wanted(), "it is not ours"
    lease.begin()
    assert peek(others.fd)[0].holds
    lease.end()
