import mmap
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from stentor.engine.sharing import lease as lease_module
from stentor.engine.sharing.lease import MAX_MEMBERS, LeaseError, Member, create_lease, peek
from stentor.tests.e2e.processes import eventually
from stentor.tests.engine.lease_child import CLOCK, HOLDS, NOTED

HOLDER, WAITS = 3, 9
"""Numbers of words of a lease: who has it, from 1, and whether the first member waits."""
_WORD = struct.Struct("<Q")


def write_word(fd: int, number: int, value: int) -> None:
    os.pwrite(fd, _WORD.pack(value), _WORD.size * number)


class Members:
    """Processes that share one lease, and a board on which whoever has it writes."""

    def __init__(self, weights: list[int], slice_seconds: float = 0.02) -> None:
        self.fd = create_lease(weights, slice_seconds)
        self.board_fd = os.memfd_create("board")
        os.ftruncate(self.board_fd, 4096)
        self.board = mmap.mmap(self.board_fd, 4096)
        self.children: list[subprocess.Popen[str]] = []

    def start(self, number: int, what: str, seconds: float) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "stentor.tests.engine.lease_child"]
            + [str(part) for part in (self.fd, self.board_fd, number, what, seconds)],
            pass_fds=(self.fd, self.board_fd),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.children.append(child)
        assert line_of(child) == "ready"
        return child

    def holder(self) -> int:
        """The holder of the lease, once the other of two waits for it."""
        found: list[int] = []

        def settled() -> bool:
            seen = peek(self.fd)
            knows = int(_WORD.unpack_from(self.board, HOLDS)[0]) - 1
            found[:] = [knows] if knows >= 0 and seen[knows].holds and seen[1 - knows].waits else []
            return bool(found)

        eventually(settled, 60, "one has it and one waits")
        return found[0]

    def pass_time(self, nanoseconds: int) -> None:
        """For those that do what they are told."""
        _WORD.pack_into(self.board, CLOCK, _WORD.unpack_from(self.board, CLOCK)[0] + nanoseconds)

    def say(self, number: int, what: str) -> None:
        """To one that does what it is told: ``yield``, or ``release``, after which it comes again at once."""
        stdin = self.children[number].stdin
        assert stdin is not None
        stdin.write(what + "\n")
        stdin.flush()

    def tell(self, number: int, what: str) -> None:
        """Returns once it is done."""
        self.say(number, what)
        assert line_of(self.children[number]) == "done"

    def close(self) -> None:
        for child in self.children:
            child.kill()
            child.communicate()
        self.board.close()
        os.close(self.board_fd)
        os.close(self.fd)


def line_of(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def ended(child: subprocess.Popen[str]) -> str:
    """What it has printed since; it must have ended well."""
    output, errors = child.communicate(timeout=30)
    assert child.returncode == 0, errors
    return output


@pytest.fixture
def members(request: pytest.FixtureRequest) -> Iterator[Members]:
    made = Members(*request.param)
    yield made
    made.close()


@pytest.mark.parametrize("members", [([1, 1],)], indirect=True)
def test_one_at_a_time_holds_the_lease(members: Members) -> None:
    children = [members.start(number, "steps", 0) for number in range(2)]
    for child in children:
        ended(child)


@pytest.mark.parametrize(
    ("members", "share"), [(([1, 1],), 20), (([3, 1],), 30)], indirect=["members"], ids=["equal", "three to one"]
)
def test_time_is_shared_in_proportion_to_the_weights(members: Members, share: int) -> None:
    """Of two that always have work, by steps of the same length."""
    for number in range(2):
        members.start(number, "directed", 0)
    steps = [0, 0]
    for _ in range(40):
        holder = members.holder()
        steps[holder] += 1
        members.pass_time(1_000_000)
        members.tell(holder, "release")
    assert abs(steps[0] - share) <= 1


@pytest.mark.parametrize("members", [([1, 1], 0.01)], indirect=True)
def test_a_long_step_lets_others_in_after_a_slice(members: Members) -> None:
    for number in range(2):
        members.start(number, "directed", 0)
    long = members.holder()
    members.pass_time(9_000_000)
    members.tell(long, "yield")
    assert members.holder() == long
    members.pass_time(1_000_000)
    members.say(long, "yield")  # it is done once it has the lease again
    eventually(lambda: peek(members.fd)[1 - long].holds, 60, "the other one is let in")
    other = members.holder()
    members.pass_time(20_000_000)
    members.tell(other, "release")
    assert line_of(members.children[long]) == "done"
    assert members.holder() == long


@pytest.mark.parametrize("members", [([1, 1],)], indirect=True)
def test_the_lease_of_a_killed_holder_is_taken_over(members: Members) -> None:
    holder = members.start(0, "hold", 60)
    assert line_of(holder) == "held"
    waiter = members.start(1, "hold", 0)
    time.sleep(0.2)
    assert waiter.poll() is None
    holder.send_signal(signal.SIGKILL)  # a zombie until it is waited for, as below a fork server
    assert line_of(waiter) == "held"
    ended(waiter)


@pytest.mark.parametrize("members", [([1, 1, 1],)], indirect=True)
def test_a_member_that_was_killed_while_it_waited_is_passed_over(members: Members) -> None:
    holder = members.start(0, "hold", 0.5)
    assert line_of(holder) == "held"
    doomed = members.start(1, "hold", 60)
    time.sleep(0.1)
    doomed.kill()
    third = members.start(2, "hold", 0)
    assert line_of(third) == "held"
    ended(holder)


@pytest.mark.parametrize("members", [([1, 1],)], indirect=True)
def test_a_new_process_takes_the_place_of_one_that_died_with_the_lease(members: Members) -> None:
    first = members.start(0, "hold", 60)
    assert line_of(first) == "held"
    first.kill()
    first.wait()
    again = members.start(0, "hold", 0)
    assert line_of(again) == "held"
    ended(again)


@pytest.mark.parametrize("members", [([1, 1],)], indirect=True)
def test_members_take_memory_one_after_the_other_and_see_what_the_living_have_taken(members: Members) -> None:
    own = Member(members.fd, 0)
    child = members.start(1, "sets-up", 0)
    assert line_of(child) == "begun"
    waits: list[int] = []

    def wait() -> None:
        waits.append(own.memory_of_others())
        members.say(0, "go on")

    with own.setting_up(wait):
        assert waits[0] == 0, "it had not been set up yet"
        assert line_of(child) == "noted"
        assert own.memory_of_others() == NOTED
        own.note_memory(5)
    assert own.memory_of_others() == NOTED, "our own is not counted"
    child.kill()
    child.wait()
    assert own.memory_of_others() == 0, "memory of the dead is free"


@pytest.mark.parametrize("members", [([1, 1],)], indirect=True)
def test_a_place_whose_process_does_not_die_is_not_waited_for_without_a_bound(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    members.start(1, "hold", 60)
    monkeypatch.setattr(lease_module, "_PLACE_SECONDS", 0.0)
    with pytest.raises(LeaseError, match="the process that was member 1 before does not die"):
        Member(os.dup(members.fd), 1)


@pytest.mark.parametrize("weights", [[], [0], [1001], [1] * (MAX_MEMBERS + 1)])
def test_odd_weights_are_refused(weights: list[int]) -> None:
    with pytest.raises(LeaseError, match="shares from 1 to 1000"):
        create_lease(weights)


def test_what_is_no_lease_is_refused() -> None:
    fd = os.memfd_create("other")
    try:
        with pytest.raises(LeaseError, match="it has 0 bytes"):
            Member(fd, 0)
    finally:
        os.close(fd)
    lease = create_lease([1])
    try:
        with pytest.raises(LeaseError, match="a member 1"):
            Member(lease, 1)
    finally:
        os.close(lease)
