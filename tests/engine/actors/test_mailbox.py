"""Mailboxes of actors."""

import anyio
import pytest

from stentor.engine.processes.mailbox import Mailbox


@pytest.mark.anyio
async def test_a_full_mailbox_makes_its_senders_wait_and_keeps_order() -> None:
    mailbox: Mailbox[int] = Mailbox(2)
    received: list[int] = []
    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(mailbox.tell, number)
        await anyio.wait_all_tasks_blocked()
        assert len(mailbox) == 2
        while len(received) < 8:
            received += await mailbox.receive_all()
            assert len(received) <= 8
    assert sorted(received) == list(range(8))
    assert received[:2] == [0, 1]
    assert len(mailbox) == 0


@pytest.mark.anyio
async def test_a_reader_waits_for_the_first_message() -> None:
    mailbox: Mailbox[int] = Mailbox(1)
    received: list[int] = []

    async def read() -> None:
        received.extend(await mailbox.receive_all())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        assert received == []
        await mailbox.tell(7)
    assert received == [7]


@pytest.mark.anyio
async def test_a_full_mailbox_still_takes_what_is_pushed() -> None:
    mailbox: Mailbox[int] = Mailbox(1)
    await mailbox.tell(1)
    mailbox.push(2)
    assert await mailbox.receive_all() == [1, 2]


@pytest.mark.anyio
async def test_waiters_that_give_up_are_forgotten() -> None:
    mailbox: Mailbox[int] = Mailbox(1)
    for _ in range(5):
        with anyio.move_on_after(0.001):
            await mailbox.receive_all()
    assert not mailbox._waiters
    mailbox.push(7)
    assert await mailbox.receive_all() == [7]
