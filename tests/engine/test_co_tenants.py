"""What an engine knows of other workers on its worker's device."""

import os
from collections.abc import Iterator

import pytest

from stentor.engine.sharing.co_tenants import CoTenants
from stentor.engine.sharing.lease import create_lease
from stentor.tests.e2e.processes import eventually
from stentor.tests.engine.test_lease import HOLDER, WAITS, Members, ended, line_of, write_word


@pytest.fixture
def members() -> Iterator[Members]:
    made = Members([1, 1])
    yield made
    made.close()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_neighbour_is_busy_while_it_has_the_device_and_for_a_moment_after(members: Members) -> None:
    clock = Clock()
    ours, theirs = CoTenants(members.fd, 0, clock), CoTenants(members.fd, 1, clock)
    assert not ours.are_busy()
    child = members.start(1, "hold", 60)
    assert line_of(child) == "held"
    assert ours.are_busy()
    assert not theirs.are_busy(), "it is no neighbour of its own"
    child.kill()
    child.wait()
    again = members.start(1, "steps", 0.05)
    ended(again)
    assert ours.are_busy()
    clock.now += 1.9
    assert ours.are_busy(), "it may come again at any moment"
    clock.now += 0.2
    assert not ours.are_busy()


def test_who_waits_for_its_turn_is_seen_to_wait(members: Members) -> None:
    ours, theirs = CoTenants(members.fd, 0), CoTenants(members.fd, 1)
    holder = members.start(1, "hold", 60)
    assert line_of(holder) == "held"
    assert not ours.worker_waits()
    waiter = members.start(0, "hold", 0)
    eventually(ours.worker_waits, 60, "it waits")
    assert not theirs.worker_waits()
    assert theirs.are_busy(), "one that waits is about to compute"
    holder.kill()
    assert line_of(waiter) == "held"
    ended(waiter)


def test_a_worker_that_does_not_take_a_device_that_is_free_does_not_wait_for_it() -> None:
    """Its turn has come, and it was woken: it hangs, or takes it within a millisecond."""
    fd = create_lease([1, 1])
    ours = CoTenants(fd, 0)
    try:
        write_word(fd, WAITS, 1)
        assert not ours.worker_waits()
        write_word(fd, HOLDER, 2)
        assert ours.worker_waits()
    finally:
        os.close(fd)
