"""Mailboxes and the lives of actors."""

from dataclasses import dataclass

import anyio
import pytest

from stentor.engine.processes.actor import Actor, Mailbox, MailboxClosed, MailboxFull, Reply, State


@dataclass
class Add:
    amount: int


@dataclass
class Get:
    reply: Reply[int]


@dataclass
class Break:
    pass


class Counter(Actor[Add | Get | Break]):
    """Adds up; :class:`Break` makes it fail."""

    def __init__(self, **failures: bool) -> None:
        super().__init__("counter", capacity=4)
        self.total = 0
        self.failures = failures
        self.seen: list[str] = []

    async def on_start(self) -> None:
        self.seen.append(f"start while {self.state.value}")
        if self.failures.get("start"):
            raise ValueError("no start")

    async def handle(self, message: Add | Get | Break) -> None:
        match message:
            case Add(amount):
                self.total += amount
            case Get(reply):
                reply.answer(self.total)
            case Break():
                raise ValueError("broken")

    async def on_stop(self) -> None:
        await anyio.sleep(0)  # must not be cut short by cancelling
        self.seen.append(f"stop while {self.state.value}")
        if self.failures.get("stop"):
            raise ValueError("no stop")


@pytest.mark.anyio
async def test_an_actor_handles_what_it_is_told_and_answers_what_it_is_asked() -> None:
    counter = Counter()
    async with anyio.create_task_group() as tasks:
        await tasks.start(counter.run)
        assert counter.state is State.RUNNING
        for amount in range(10):
            await counter.mailbox.tell(Add(amount))
        assert await counter.mailbox.ask(Get) == 45
        counter.mailbox.tell_nowait(Add(1))
        counter.stop()
        with pytest.raises(MailboxClosed, match="counter"):
            counter.mailbox.tell_nowait(Add(1))
    assert counter.state is State.STOPPED
    assert counter.total == 46
    assert counter.seen == ["start while starting", "stop while stopping"]


@pytest.mark.anyio
async def test_cancelling_is_a_clean_stop() -> None:
    counter = Counter()
    async with anyio.create_task_group() as tasks:
        await tasks.start(counter.run)
        tasks.cancel_scope.cancel()
    assert counter.state is State.STOPPED
    assert counter.seen[-1] == "stop while stopping"


@pytest.mark.anyio
@pytest.mark.parametrize("where", ["start", "handle", "stop"])
async def test_an_exception_reaches_whoever_runs_the_actor(where: str) -> None:
    counter = Counter(**{where: True})
    if where == "handle":
        counter.mailbox.tell_nowait(Break())
    else:
        counter.stop()
    with pytest.raises(ValueError, match=r"broken|no start|no stop"):
        await counter.run()
    assert counter.state is State.FAILED
    assert counter.seen[-1] == "stop while stopping"


@pytest.mark.anyio
async def test_no_question_stays_without_an_answer_when_the_actor_fails() -> None:
    counter = Counter()
    outcomes: list[str] = []

    async def ask() -> None:
        with pytest.raises(MailboxClosed) as raised:
            await counter.mailbox.ask(Get)
        outcomes.append(str(raised.value.__cause__))

    async def run() -> None:
        with pytest.raises(ValueError, match="broken"):
            await counter.run()

    counter.mailbox.tell_nowait(Break())
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(60):
            for _ in range(6):  # more than fit: some wait to be put in, some wait for the answer
                tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(run)
    assert len(outcomes) == 6
    assert "broken" in outcomes


@pytest.mark.anyio
async def test_a_question_can_be_answered_with_an_error_and_only_once() -> None:
    mailbox: Mailbox[Get] = Mailbox("someone", 1)

    async def refuse() -> None:
        message = await mailbox.receive()
        message.reply.fail(LookupError("unknown"))
        message.reply.answer(1)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(refuse)
        with pytest.raises(LookupError, match="unknown"):
            await mailbox.ask(Get)


@pytest.mark.anyio
async def test_an_asker_that_gives_up_is_seen_to_have_done_so() -> None:
    mailbox: Mailbox[Get] = Mailbox("someone", 1)
    with anyio.move_on_after(0.01):
        await mailbox.ask(Get)
    [message] = mailbox.receive_all_nowait()
    assert message.reply.abandoned
    message.reply.answer(1)


@pytest.mark.anyio
async def test_a_full_mailbox_refuses_at_once_or_waits_and_keeps_order() -> None:
    mailbox: Mailbox[int] = Mailbox("someone", 2)
    mailbox.tell_nowait(0)
    mailbox.tell_nowait(1)
    with pytest.raises(MailboxFull, match=r"someone is full \(2 messages\)"):
        mailbox.tell_nowait(2)
    received: list[int] = []
    async with anyio.create_task_group() as tasks:
        for number in range(2, 8):
            tasks.start_soon(mailbox.tell, number)
        await anyio.wait_all_tasks_blocked()
        assert len(mailbox) == 2
        while len(received) < 8:
            received += await mailbox.receive_all()
            assert len(received) <= 8
    assert sorted(received) == list(range(8))
    assert received[:2] == [0, 1]
    assert mailbox.receive_all_nowait() == []


@pytest.mark.anyio
async def test_a_closed_mailbox_gives_out_what_it_holds_and_wakes_everyone() -> None:
    mailbox: Mailbox[int] = Mailbox("someone", 1)
    mailbox.tell_nowait(1)

    async def tell() -> None:
        with pytest.raises(MailboxClosed):
            await mailbox.tell(2)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tell)
        await anyio.wait_all_tasks_blocked()
        mailbox.close()
    assert await mailbox.receive() == 1
    with pytest.raises(MailboxClosed):
        await mailbox.receive()
    with pytest.raises(MailboxClosed):
        await mailbox.receive_all()


def test_a_mailbox_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Mailbox[int]("someone", 0)


@pytest.mark.anyio
async def test_an_actor_lives_once() -> None:
    counter = Counter()
    counter.stop()
    await counter.run()
    with pytest.raises(RuntimeError, match="counter is stopped and cannot become"):
        await counter.run()
    assert counter.state is State.STOPPED


@pytest.mark.anyio
async def test_a_full_mailbox_still_takes_what_is_pushed_until_it_is_closed() -> None:
    mailbox: Mailbox[int] = Mailbox("someone", 1)
    mailbox.tell_nowait(1)
    with pytest.raises(MailboxFull):
        mailbox.tell_nowait(2)
    mailbox.push(2)
    assert await mailbox.receive_all() == [1, 2]
    mailbox.close()
    with pytest.raises(MailboxClosed):
        mailbox.push(3)


@pytest.mark.anyio
async def test_waiters_that_give_up_are_forgotten() -> None:
    mailbox: Mailbox[int] = Mailbox("someone", 1)
    for _ in range(5):
        with anyio.move_on_after(0.001):
            await mailbox.receive()
    assert not mailbox._waiters
    mailbox.tell_nowait(7)
    assert await mailbox.receive() == 7
