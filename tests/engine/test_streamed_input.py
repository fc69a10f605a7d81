"""The client's side of audio that comes piece by piece: what is kept of it, and what goes to which engine."""

import os
import random
from typing import cast

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.engine.channel import Endpoint
from stentor.engine.channel.arena import Arena, ArenaReader
from stentor.engine.client.media import MediaStore, StreamedMedia
from stentor.engine.client.send_queue import SendQueue
from stentor.engine.client.stream import RequestStream
from stentor.engine.core.input import InputStream
from stentor.protocols.ipc.actors import Append, EngineInbox, Finished, PromptPart, SequenceTokens, Submit
from stentor.protocols.ipc.codec import decode_engine
from stentor.protocols.ipc.inputs import MAX_STREAM_BYTES, ArenaRef, Streamed, StreamShape
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.examples import examples

ARENA = Arena(1 << 26)


def submit(streamed: Streamed | None) -> Submit:
    return Submit(3, [1], SamplingParams(max_tokens=9), [5], 0, "", 0.0, streamed=streamed)


def listening() -> tuple[RequestStream, list[Append], ArenaReader]:
    """A request that has heard b"ab", what it has told, and what reads it."""
    appended: list[Append] = []
    heard = StreamedMedia(ARENA, [])
    heard.append(b"ab", last=False)
    stream = RequestStream(submit(heard.streamed()), lambda stream, index: None, appended.append, heard)
    return stream, appended, ArenaReader(os.dup(ARENA.fd))


def pcm_of(reader: ArenaReader, pieces: list[ArenaRef]) -> bytes:
    return b"".join(map(reader.read, pieces))


def test_what_is_appended_is_told_and_kept_for_another_engine() -> None:
    stream, appended, reader = listening()
    stream.append(b"cd")
    stream.append(b"")
    stream.append(b"ef", last=True)
    assert [(pcm_of(reader, more.pieces), more.last) for more in appended] == [(b"cd", False), (b"ef", True)]
    heard = stream.resubmission().streamed
    assert heard is not None
    assert (pcm_of(reader, heard.pieces), heard.ended) == (b"abcdef", True)
    stream.push_tokens(SequenceTokens(3, 0, [7], None))
    stream._prompt_done = True
    again = stream.resubmission()
    assert again.streamed == heard
    assert again.resumed is not None
    assert again.resumed.outputs == [[7]]


def test_parts_of_results_are_read_as_they_come_and_once_though_another_engine_sends_them_again() -> None:
    stream, _, _ = listening()
    assert stream.push_part(PromptPart(3, 0, [], b"abcd", 1))
    assert not stream.push_part(PromptPart(3, 4, [], b"ef", 2)), "the reader has not read the first"
    assert stream._take() == [PromptPart(3, 0, [], b"abcdef", 2)]
    assert stream.resubmission().resumed is None
    assert stream.push_part(PromptPart(3, 0, [], b"abcd", 1))
    stream.push_part(PromptPart(3, 4, [], b"efgh", 3))
    assert stream._take() == [PromptPart(3, 6, [], b"gh", 3)]
    stream.push_end(Finished(3, 0, "stop", None, None))
    assert not stream.push_part(PromptPart(3, 8, [], b"ij", 4))


@pytest.mark.parametrize(("samples", "ready", "whole"), [(0, 0, 1), (4, 0, 1), (5, 1, 2), (7, 1, 2), (8, 2, 3)])
def test_the_tail_of_an_input_is_a_position_of_its_own(samples: int, ready: int, whole: int) -> None:
    shape = StreamShape(5, 3, tail=True)
    assert (shape.positions(samples, ended=False), shape.positions(samples, ended=True)) == (ready, whole)


def test_what_cannot_be_appended_is_refused_and_changes_nothing() -> None:
    stream, appended, reader = listening()
    with pytest.raises(ValueError, match="whole samples"):
        stream.append(b"c")
    with pytest.raises(ValueError, match="at most 33554432 bytes"):
        stream.append(bytes(MAX_STREAM_BYTES))
    stream.append(b"", last=True)
    with pytest.raises(ValueError, match="has had its end"):
        stream.append(b"cd")
    assert appended == [Append(3, [], True)]
    heard = stream.resubmission().streamed
    assert heard is not None
    assert (pcm_of(reader, heard.pieces), heard.ended) == (b"ab", True)
    with pytest.raises(ValueError, match="without streamed audio"):
        RequestStream(submit(None), lambda stream, index: None, appended.append).append(b"cd")


def test_nobody_hears_what_comes_after_the_end_of_a_request_and_it_takes_no_memory() -> None:
    stream, appended, _ = listening()
    used = ARENA.used
    stream.push_end(Finished(3, 0, "abort", None, None))
    stream.append(bytes(1 << 20))
    assert not appended
    assert ARENA.used == used


@given(st.lists(st.integers(0, 100_000).map(lambda samples: 2 * samples), max_size=8), st.data())
@settings(max_examples=examples(30), deadline=None)
def test_a_stream_is_cut_anywhere_whatever_the_pieces_it_came_in(sizes: list[int], data: st.DataObject) -> None:
    store = MediaStore(ARENA)
    reader, used = ArenaReader(os.dup(ARENA.fd)), ARENA.used
    stream = store.stream(1)
    pcm = random.Random(1).randbytes(sum(sizes))
    engine = InputStream(Streamed(), StreamShape(1, 1))
    at = 0
    for size in sizes:
        engine.append(stream.append(pcm[at : at + size], last=False), ended=False)
        at += size
    start = data.draw(st.integers(0, at))
    end = data.draw(st.integers(start, at))
    assert len(engine) == at
    assert pcm_of(reader, engine.between(start, end)) == pcm[start:end]
    assert pcm_of(reader, stream.streamed().pieces) == pcm
    store.sweep(lambda rid: False)
    assert ARENA.used == used


class Recorder:
    """Takes frames as an engine's channel does, and gives up when there are so many."""

    def __init__(self) -> None:
        self.seen: list[EngineInbox] = []

    async def send(self, frame: bytes) -> None:
        self.seen.append(decode_engine.decode(frame))


@pytest.mark.anyio
async def test_pieces_that_wait_leave_as_one_after_their_request() -> None:
    outbox, engine = SendQueue(), Recorder()
    request = submit(Streamed())
    outbox.submit(3, request)
    for start in (0, 640):
        outbox.append(Append(3, [ArenaRef(start, 640)], start == 640))
    outbox.submit(4, (b"unused",))
    assert outbox.withdraw(4)
    outbox.append(Append(5, [ArenaRef(4096, 2)], False))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outbox.send_all, cast(Endpoint, engine))
        await anyio.wait_all_tasks_blocked()
        outbox.append(Append(5, [ArenaRef(8192, 2)], False))
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert engine.seen == [
        request,
        Append(3, [ArenaRef(0, 1280)], True),
        Append(5, [ArenaRef(4096, 2)], False),
        Append(5, [ArenaRef(8192, 2)], False),
    ]


def test_a_request_that_is_withdrawn_takes_its_pieces_with_it() -> None:
    outbox = SendQueue()
    outbox.submit(3, submit(Streamed()))
    outbox.append(Append(3, [ArenaRef(0, 2)], False))
    assert outbox.withdraw(3)
    assert not len(outbox)
    outbox.append(Append(4, [ArenaRef(0, 2)], False))
    assert not outbox.withdraw(4)
    assert len(outbox) == 1, "its request has left: the engine waits for what follows"
