"""The client's side of audio that comes piece by piece: what is kept of it, and what goes to which engine."""

from typing import cast

import anyio
import pytest

from stentor.engine.channel import Endpoint
from stentor.engine.client.send_queue import SendQueue
from stentor.engine.client.stream import RequestStream
from stentor.protocols.ipc.actors import Append, EngineInbox, Finished, SequenceTokens, Submit
from stentor.protocols.ipc.audio import MAX_STREAM_BYTES, Streamed
from stentor.protocols.ipc.codec import decode_engine
from stentor.protocols.ipc.sampling import SamplingParams


def submit(streamed: Streamed | None) -> Submit:
    return Submit(3, [1], SamplingParams(max_tokens=9), [5], 0, "", 0.0, streamed=streamed)


BEGUN = Streamed(b"ab")


def listening(streamed: Streamed | None = BEGUN) -> tuple[RequestStream, list[Append]]:
    told: list[Append] = []
    return RequestStream(submit(streamed), lambda stream, index: None, told.append), told


def test_what_is_appended_is_told_and_kept_for_another_engine() -> None:
    stream, told = listening()
    stream.append(b"cd")
    stream.append(b"")
    stream.append(b"ef", last=True)
    assert told == [Append(3, b"cd", False), Append(3, b"ef", True)]
    assert stream.resubmission() == submit(Streamed(b"abcdef", True))
    stream.push_tokens(SequenceTokens(3, 0, [7], None))
    stream._prompt_done = True
    again = stream.resubmission()
    assert again.streamed == Streamed(b"abcdef", True)
    assert again.resumed is not None
    assert again.resumed.outputs == [[7]]


def test_what_cannot_be_appended_is_refused_and_changes_nothing() -> None:
    stream, told = listening()
    with pytest.raises(ValueError, match="whole samples"):
        stream.append(b"c")
    with pytest.raises(ValueError, match="at most 33554432 bytes"):
        stream.append(bytes(MAX_STREAM_BYTES))
    stream.append(b"", last=True)
    with pytest.raises(ValueError, match="has had its end"):
        stream.append(b"cd")
    assert told == [Append(3, b"", True)]
    assert stream.resubmission().streamed == Streamed(b"ab", True)
    other, _ = listening(None)
    with pytest.raises(ValueError, match="without streamed audio"):
        other.append(b"cd")


def test_nobody_hears_what_comes_after_the_end_of_a_request() -> None:
    stream, told = listening()
    stream.push_end(Finished(3, 0, "abort", None, None))
    stream.append(b"cd")
    assert not told


class Recorder:
    """Takes frames as an engine's channel does, and gives up when there are so many."""

    def __init__(self) -> None:
        self.seen: list[EngineInbox] = []

    async def send(self, frame: bytes) -> None:
        self.seen.append(decode_engine.decode(frame))


@pytest.mark.anyio
async def test_pieces_that_wait_leave_as_one_after_their_request() -> None:
    outbox, engine = SendQueue(), Recorder()
    request = submit(Streamed(b"ab"))
    outbox.submit(3, request)
    for piece in (b"cd", b"ef"):
        outbox.append(Append(3, piece, piece == b"ef"))
    outbox.submit(4, (b"unused",))
    assert outbox.withdraw(4)
    outbox.append(Append(5, b"gh", False))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outbox.send_all, cast(Endpoint, engine))
        await anyio.wait_all_tasks_blocked()
        outbox.append(Append(5, b"ij", False))
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert engine.seen == [request, Append(3, b"cdef", True), Append(5, b"gh", False), Append(5, b"ij", False)]


def test_a_request_that_is_withdrawn_takes_its_pieces_with_it() -> None:
    outbox = SendQueue()
    outbox.submit(3, submit(Streamed()))
    outbox.append(Append(3, b"ab", False))
    assert outbox.withdraw(3)
    assert not len(outbox)
    outbox.append(Append(4, b"ab", False))
    assert not outbox.withdraw(4)
    assert len(outbox) == 1, "its request has left: the engine waits for what follows"
