"""Whatever one owner requests, others are served in turn; cancelled waiters leave nothing behind."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.server.common.fair_queue import FairQueue, FairSemaphore, QueueFull, Shares

pytestmark = pytest.mark.anyio
OWNERS = "abcd"

queue_steps = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.sampled_from(OWNERS)),
        st.tuples(st.just("pop"), st.just("")),
        st.tuples(st.just("remove"), st.integers(0, 20)),
    ),
    max_size=80,
)


@given(st.integers(0, 9), queue_steps)
def test_every_owner_is_served_within_as_many_turns_as_there_are_owners(
    most: int, steps: list[tuple[str, object]]
) -> None:
    queue: FairQueue[int] = FairQueue(most)
    waiting: dict[str, list[int]] = {owner: [] for owner in OWNERS}
    passed_over = dict.fromkeys(OWNERS, 0)
    for number, (step, what) in enumerate(steps):
        others = {owner: len(line) for owner, line in waiting.items()}
        if step == "push":
            owner = str(what)
            try:
                dropped = queue.push(owner, number)
            except QueueFull:
                # it has its equal part, and nobody has more than one above it
                assert len(queue) == most
                assert others[owner] + 1 >= max(others.values())
                assert (others[owner] + 1) * sum(bool(line) or name == owner for name, line in waiting.items()) > most
            else:
                waiting[owner].append(number)
                if dropped is not None:
                    (loser,) = (name for name, line in waiting.items() if line and line[-1] == dropped)
                    assert loser != owner
                    assert others[loser] == max(others.values()) > others[owner] + 1
                    waiting[loser].remove(dropped)
        elif step == "pop":
            popped = queue.pop()
            assert (popped is None) == (sum(others.values()) == 0)
            if popped is not None:
                owner, item = popped
                assert waiting[owner].pop(0) == item, "not the first of its line"
                for name in OWNERS:
                    passed_over[name] = 0 if name == owner or not waiting[name] else passed_over[name] + 1
                    assert passed_over[name] < len(OWNERS)
        else:
            known = [(owner, item) for owner, line in waiting.items() for item in line]
            if known:
                owner, item = known[int(str(what)) % len(known)]
                assert queue.remove(owner, item)
                assert not queue.remove(owner, item)
                waiting[owner].remove(item)
                if not waiting[owner]:
                    passed_over[owner] = 0
        assert len(queue) == sum(map(len, waiting.values())) <= most
    assert sorted(queue.clear()) == sorted(item for line in waiting.values() for item in line)
    assert not queue._lines


@given(st.integers(1, 40), st.lists(st.tuples(st.sampled_from(OWNERS), st.booleans()), max_size=120))
def test_nobody_takes_more_than_is_left_then(most: int, steps: list[tuple[str, bool]]) -> None:
    shares, held = Shares(most), dict.fromkeys(OWNERS, 0)
    for owner, takes in steps:
        if takes and shares.fits(owner):
            shares.take(owner)
            held[owner] += 1
            assert held[owner] <= most - sum(held.values()) + 1
        elif not takes and held[owner]:
            shares.give_back(owner)
            held[owner] -= 1
        elif takes:
            assert held[owner] >= most - sum(held.values())
        assert (shares.total, {name: shares.held(name) for name in OWNERS}) == (sum(held.values()), held)
    for owner, count in held.items():
        shares.give_back(owner, count)
    assert not shares._held


def test_an_owner_alone_may_take_all_where_there_are_no_others() -> None:
    shares = Shares(8)
    taken = 0
    while shares.fits("a"):
        shares.take("a")
        taken += 1
    assert taken == 4
    assert shares.fits("b")
    assert shares.fits("a", 4, alone=True)
    assert not shares.fits("a", 5, alone=True)


semaphore_steps = st.lists(
    st.tuples(st.sampled_from(["acquire", "release", "cancel", "cancel a granted one"]), st.integers(0, 30)),
    max_size=60,
)


@given(st.integers(1, 5), st.integers(0, 6), semaphore_steps)
def test_whoever_comes_and_goes_no_slot_is_lost_and_nobody_waits_who_could_have_one(
    slots: int, most_waiting: int, steps: list[tuple[str, int]]
) -> None:
    async def main() -> None:
        semaphore = FairSemaphore(slots, most_waiting)
        tasks: dict[asyncio.Task[None], str] = {}

        def in_state(*, done: bool) -> list[asyncio.Task[None]]:
            return [task for task in tasks if task.done() == done]

        for step, number in steps:
            holders, waiters = in_state(done=True), in_state(done=False)
            if step == "acquire":
                owner = OWNERS[number % len(OWNERS)]
                tasks[asyncio.create_task(semaphore.acquire(owner))] = owner
            elif step == "cancel" and waiters:
                waiters[number % len(waiters)].cancel()
            elif step != "cancel" and holders:
                semaphore.release(tasks.pop(holders[number % len(holders)]))
                if step == "cancel a granted one":
                    for task in waiters:
                        task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            for task in [task for task in tasks if task.done()]:
                if task.cancelled() or task.exception() is not None:
                    assert task.cancelled() or isinstance(task.exception(), QueueFull)
                    del tasks[task]
            holding, waiting = in_state(done=True), in_state(done=False)
            assert semaphore._shares.total == len(holding) <= slots
            assert len(semaphore._waiting) == len(waiting) <= most_waiting
            assert not any(semaphore._shares.fits(tasks[task]) for task in waiting)
        for task in in_state(done=False):
            task.cancel()
        await asyncio.gather(*in_state(done=False), return_exceptions=True)
        for task, owner in tasks.items():
            if not task.cancelled():
                semaphore.release(owner)
        assert len(semaphore) == 0
        assert not semaphore._shares._held

    asyncio.run(main())


async def test_slots_are_given_to_owners_in_turn() -> None:
    semaphore = FairSemaphore(1, 16)
    order: list[str] = []

    async def use(owner: str) -> None:
        async with semaphore.slot(owner):
            order.append(owner)
            await asyncio.sleep(0)

    await asyncio.gather(*(use(owner) for owner in "aaaaaabbc"))
    assert order == list("aabcabaaa")


async def test_one_that_has_to_leave_for_another_owner_is_told_so() -> None:
    semaphore = FairSemaphore(1, 2)
    await semaphore.acquire("a")
    waiting = [asyncio.create_task(semaphore.acquire("a")) for _ in range(2)]
    await asyncio.sleep(0)
    other = asyncio.create_task(semaphore.acquire("b"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [task.done() for task in (*waiting, other)] == [False, True, False]
    with pytest.raises(QueueFull):
        await waiting[1]
    with pytest.raises(QueueFull):
        await semaphore.acquire("b")  # it has as many as the other
    semaphore.release("a")
    await waiting[0]
    semaphore.release("a")
    await other
    semaphore.release("b")
    assert len(semaphore) == 0
