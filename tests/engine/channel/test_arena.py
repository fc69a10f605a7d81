"""Media in shared memory: allocation, what a reader sees, when memory is returned."""

import asyncio
import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stentor.engine.channel import CorruptChannel
from stentor.engine.channel.arena import Arena, ArenaFull, ArenaReader
from stentor.engine.client.media import Media, MediaStore
from stentor.protocols.ipc.inputs import ArenaRef
from stentor.tests.examples import examples

PAGE = 4096
SIZE = 16 * PAGE


def read_all(arena: Arena) -> ArenaReader:
    return ArenaReader(os.dup(arena.fd))


class ArenaMachine(RuleBasedStateMachine):
    """Whatever is allocated, shared and freed: held media keep their bytes and overlap no other."""

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(SIZE)
        self.reader = read_all(self.arena)
        self.held: list[tuple[ArenaRef, bytes]] = []

    @rule(length=st.integers(1, 5 * PAGE), fill=st.integers(1, 255))
    def allocate(self, length: int, fill: int) -> None:
        try:
            ref = self.arena.allocate(length)
        except ArenaFull:
            return
        data = bytes([fill]) * length
        self.arena.write(ref, data)
        self.held.append((ref, data))

    @rule(number=st.integers(0, 3))
    def share(self, number: int) -> None:
        data = bytes([100 + number]) * (PAGE * number + 1)
        try:
            self.held.append((self.arena.share(bytes([number]) * 16, data), data))
        except ArenaFull:
            return

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        if self.held:
            ref, _ = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
            self.arena.free(ref)

    @invariant()
    def agrees(self) -> None:
        self.arena.check_integrity()
        for ref, data in self.held:
            assert self.reader.read(ref) == data
        pages = {
            page for ref, _ in self.held for page in range(ref.start // PAGE, -(-(ref.start + ref.length) // PAGE))
        }
        assert self.arena.used == PAGE * len(pages)


TestArenaInAnyOrder = ArenaMachine.TestCase
TestArenaInAnyOrder.settings = settings(max_examples=examples(30, 300), stateful_step_count=40, deadline=None)


def test_memory_is_taken_where_it_is_written_and_goes_back() -> None:
    arena = Arena(1 << 30)
    blocks = [os.fstat(arena.fd).st_blocks]
    ref = arena.share(b"a" * 16, bytes(1 << 20))
    blocks.append(os.fstat(arena.fd).st_blocks)
    arena.free(ref)
    blocks.append(os.fstat(arena.fd).st_blocks)
    assert blocks == [0, (1 << 20) // 512, 0]


def test_what_does_not_fit_is_told_with_how_much_is_held() -> None:
    arena = Arena(SIZE)
    arena.allocate(12 * PAGE)
    with pytest.raises(ArenaFull, match=f"no room for {5 * PAGE} bytes of media: .* hold {12 * PAGE} of {SIZE}"):
        arena.allocate(5 * PAGE)


def test_a_reader_takes_nothing_outside_the_arena_and_no_other_file() -> None:
    arena = Arena(SIZE)
    reader = read_all(arena)
    for ref in (ArenaRef(0, SIZE + 1), ArenaRef(-1, 1), ArenaRef(SIZE, 1)):
        with pytest.raises(CorruptChannel, match="is not among them"):
            reader.read(ref)
    other = os.memfd_create("other")
    os.ftruncate(other, 4096)
    with pytest.raises((CorruptChannel, OSError)):
        ArenaReader(other)


def test_an_arena_cannot_be_cut_under_its_readers() -> None:
    arena = Arena(SIZE)
    with pytest.raises(PermissionError):
        os.ftruncate(arena.fd, PAGE)


MEDIA = [Media(b"x" * 10, b"1" * 16), Media(b"y" * 10, b"2" * 16)]


def test_media_stay_until_their_engine_reads_them_no_more() -> None:
    store = MediaStore(Arena(SIZE))
    store.place(1, MEDIA, 5)
    store.given(1)
    store.sweep(lambda rid: False)
    assert store.arena.used == 2 * PAGE, "the engine has not said so"
    store.released([1])
    assert not store.arena.used
    store.released([1])


def test_media_of_a_lost_engine_go_with_the_requests_that_end_and_stay_for_the_others() -> None:
    store = MediaStore(Arena(SIZE))
    for rid in (1, 2):
        store.place(rid, MEDIA[:rid], 5)
        store.given(rid)
    store.lost()
    store.sweep(lambda rid: rid == 1)
    assert store.arena.used == PAGE
    store.given(1)
    store.released([1])
    assert not store.arena.used


def test_what_cannot_be_placed_whole_is_not_placed_at_all() -> None:
    store = MediaStore(Arena(2 * PAGE))
    with pytest.raises(ArenaFull):
        store.place(1, [*MEDIA, Media(b"z", b"3" * 16)], 5)
    assert not store.arena.used


def test_a_request_of_text_alone_leaves_nothing_behind() -> None:
    store = MediaStore(Arena(SIZE))
    store.place(1, [], 5)
    store.given(1)
    assert not len(store), "no engine names a request that brought no media, so it would be kept for ever"


def test_large_media_have_a_place_at_once_and_are_written_when_they_are_wanted() -> None:
    store = MediaStore(Arena(4 << 20))
    small, large = Media(b"a" * 100, b"s" * 16, 0, 1), Media(bytes(range(256)) * 4096, b"l" * 16, 1, 1)

    async def run() -> None:
        spans = store.place(1, [small, large], 0)
        same = store.place(2, [large], 0)
        assert [span.written for span in (*spans, *same)] == [True, False, False]
        assert store.arena.used == (1 << 20) + PAGE, "what two bring has one place"
        reader = read_all(store.arena)
        assert bytes(reader.read(spans[1].data)) == bytes(1 << 20)
        await asyncio.gather(store.write(1), store.write(2))
        assert bytes(reader.read(same[0].data)) == large.data
        assert store.place(3, [large], 0)[0].written
        store.released([1, 2, 3])
        assert store.arena.used == 0
        assert not store.place(4, [large], 0)[0].written
        store.released([4])
        store.arena.check_integrity()

    asyncio.run(run())


def test_a_request_that_ends_while_its_media_are_written_leaves_nothing_behind_and_nothing_writes_into_its_place() -> (
    None
):
    store = MediaStore(Arena(64 << 20))
    large, next_one = Media(bytes(32 << 20), b"l" * 16, 0, 1), Media(b"n" * (32 << 20), b"n" * 16, 0, 1)

    async def run() -> None:
        store.place(1, [large], 0)
        writing = asyncio.ensure_future(store.write(1))
        await asyncio.sleep(0)
        store.released([1])
        place = store.place(2, [next_one], 0)[0]
        assert place.data.start == 32 << 20, "the other is being written"
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        await store.write(1)
        assert store.arena.used == 32 << 20
        store.released([2])
        assert store.arena.used == 0

    asyncio.run(run())


def test_media_that_find_no_room_leave_none_of_theirs_behind() -> None:
    store = MediaStore(Arena(2 << 20))
    fits, never = Media(bytes(1 << 20), b"f" * 16, 0, 1), Media(bytes(2 << 20), b"n" * 16, 1, 1)
    with pytest.raises(ArenaFull):
        store.place(1, [fits, never], 0)
    assert store.arena.used == 0
    assert store.place(2, [fits], 0)
