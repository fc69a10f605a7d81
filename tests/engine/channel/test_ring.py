"""The ring alone: both sides in one process, no descriptors but the memory's."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.engine.channel import MAX_FRAME, CorruptChannel, FrameTooLarge
from stentor.engine.channel.atomics import machine_atomics
from stentor.engine.channel.region import Region
from stentor.engine.channel.ring import RingReader, RingWriter, record_bytes
from stentor.tests.examples import examples

pytestmark = pytest.mark.sampled

CAPACITIES = st.sampled_from([64, 128, 1024])


def no_bell() -> None:
    pass


@contextmanager
def a_ring(capacity: int) -> Iterator[tuple[RingWriter, RingReader]]:
    region = Region.create(capacity)
    try:
        yield RingWriter(region, 0, machine_atomics(), no_bell), RingReader(region, 0, machine_atomics(), no_bell)
    finally:
        region.unmap()
        os.close(region.memfd)


def payload(seed: int, length: int) -> bytes:
    return bytes((seed * 31 + i * 7) & 0xFF for i in range(length))


@settings(max_examples=examples(50, 750), deadline=None)
@given(CAPACITIES, st.lists(st.one_of(st.none(), st.integers(0, 300)), max_size=60))
def test_frames_come_out_equal_and_in_order(capacity: int, steps: list[int | None]) -> None:
    """A number is a frame of that length to write, None a read. The model is a deque of whole frames."""
    with a_ring(capacity) as (writer, reader):
        model: deque[bytes] = deque()
        used = 0
        largest = capacity // 2 - 8
        for seed, step in enumerate(steps):
            if step is None:
                assert reader.read() == list(model)
                model.clear()
                used = 0
                continue
            frame = payload(seed, step)
            whole, rest = divmod(step, largest)
            need = whole * record_bytes(largest) + (record_bytes(rest) if rest or not whole else 0)
            fits = used + need <= capacity
            assert writer.try_write(frame) == fits
            if fits:
                model.append(frame)
                used += need
        assert reader.read() == list(model)


@settings(max_examples=examples(50, 500), deadline=None)
@given(CAPACITIES, st.lists(st.integers(0, 5000), max_size=12), st.booleans())
def test_frames_larger_than_the_ring_pass_in_fragments(capacity: int, lengths: list[int], views: bool) -> None:
    with a_ring(capacity) as (writer, reader):
        sent = [payload(seed, length) for seed, length in enumerate(lengths)]
        received = []
        for frame in sent:
            for _ in writer.write_gradually(memoryview(bytearray(frame)) if views else frame):
                got = reader.read()
                received += got
        received += reader.read()
        assert received == sent


def test_a_frame_that_fits_exactly_fills_the_ring_and_nothing_more_fits() -> None:
    with a_ring(64) as (writer, reader):
        assert writer.try_write(b"a" * 24)
        assert writer.try_write(b"b" * 24)
        assert not writer.try_write(b"")
        assert reader.read() == [b"a" * 24, b"b" * 24]
        assert writer.try_write(b"")
        assert reader.read() == [b""]


def test_an_abandoned_frame_is_dropped_and_the_next_one_arrives() -> None:
    with a_ring(64) as (writer, reader):
        abandoned = writer.write_gradually(b"x" * 500)
        next(abandoned)
        assert reader.read() == []
        abandoned.close()
        assert writer.try_write(b"short")
        assert reader.read() == [b"short"]
        abandoned = writer.write_gradually(b"x" * 500)
        next(abandoned)
        assert reader.read() == []
        received = []
        for _ in writer.write_gradually(b"y" * 300):
            received += reader.read()
        assert received + reader.read() == [b"y" * 300]


def test_a_frame_over_the_limit_is_refused_before_anything_is_written() -> None:
    with a_ring(64) as (writer, reader):
        too_large = memoryview(bytes(MAX_FRAME + 1))
        with pytest.raises(FrameTooLarge, match=str(MAX_FRAME)):
            writer.try_write(too_large)
        with pytest.raises(FrameTooLarge):
            next(writer.write_gradually(too_large))
        assert reader.read() == []


HEADER_WORD = 4096 // 8
TAIL_WORD = 64 // 8
HEAD_WORD = TAIL_WORD + 128 // 8


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (HEADER_WORD, 0),
        (HEADER_WORD, 5 | 3 << 32),
        (HEADER_WORD, 0xFFFF_FFFF | 3 << 32 | 0x5E71 << 48),
        (HEADER_WORD, 9 | 3 << 32 | 0x5E71 << 48),
        (HEADER_WORD, 5 | 7 << 32 | 0x5E71 << 48),
        (HEADER_WORD, 5 | 0 << 32 | 0x5E71 << 48),
        (TAIL_WORD, 24),
        (TAIL_WORD, 15),
        (TAIL_WORD, 72),
        (TAIL_WORD, 1 << 63),
    ],
    ids=[
        "zeroed header",
        "no tag",
        "huge length",
        "length beyond the tail",
        "unknown flag",
        "end of no frame",
        "tail beyond the records",
        "unaligned tail",
        "tail beyond the ring",
        "absurd tail",
    ],
)
def test_a_corrupt_word_is_an_error_now_and_ever_after(word: int, value: int) -> None:
    region = Region.create(64)
    writer = RingWriter(region, 0, machine_atomics(), no_bell)
    reader = RingReader(region, 0, machine_atomics(), no_bell)
    assert writer.try_write(b"hello")
    region.words[word] = value
    for _ in range(2):
        with pytest.raises(CorruptChannel, match="corrupt"):
            reader.read()
    region.unmap()
    os.close(region.memfd)


@pytest.mark.parametrize("head", [8, 4, 1 << 62])
def test_a_writer_that_needs_room_notices_a_corrupt_reader_position(head: int) -> None:
    region = Region.create(64)
    writer = RingWriter(region, 0, machine_atomics(), no_bell)
    region.words[HEAD_WORD] = head
    if head == 8:  # ahead of the writer, who has written nothing
        with pytest.raises(CorruptChannel):
            writer.try_write(b"x" * 100)
    else:
        assert writer.try_write(b"x" * 24)
        with pytest.raises(CorruptChannel):
            writer.try_write(b"x" * 40)
    region.unmap()
    os.close(region.memfd)


@settings(max_examples=examples(60, 1000), deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.binary(min_size=1, max_size=16), st.integers(0, 127))
def test_scribbled_memory_gives_frames_or_an_error_but_never_anything_else(
    lengths: list[int], scribble: bytes, at: int
) -> None:
    region = Region.create(128)
    writer = RingWriter(region, 0, machine_atomics(), no_bell)
    reader = RingReader(region, 0, machine_atomics(), no_bell)
    for length in lengths:
        writer.try_write(bytes(length))
    start = 4096 + at
    region.data[start : start + len(scribble)] = scribble
    try:
        frames = reader.read()
        assert sum(map(len, frames)) <= 128
    except CorruptChannel:
        pass
    region.unmap()
    os.close(region.memfd)


class Interrupting:
    """Atomics that run ``other`` just before the ``at``-th access: the peer, at its most inconvenient."""

    def __init__(self, at: int, other: Callable[[], object]) -> None:
        self._inner = machine_atomics()
        self.countdown = at
        self.other = other

    def load(self, words: memoryview, index: int, /) -> int:
        self._tick()
        return self._inner.load(words, index)

    def store(self, words: memoryview, index: int, value: int, /) -> None:
        self._tick()
        self._inner.store(words, index, value)

    def finish(self) -> None:
        """Run ``other`` now if the accesses were too few for it."""
        left, self.countdown = self.countdown, 0
        if left > 0:
            self.other()

    def _tick(self) -> None:
        self.countdown -= 1
        if self.countdown == 0:
            self.other()


@pytest.mark.parametrize("at", range(1, 9))
@pytest.mark.parametrize("earlier_sleeps", [0, 1, 2])
@pytest.mark.parametrize("who_is_interrupted", ["reader", "writer"])
def test_a_reader_never_sleeps_through_a_frame(at: int, earlier_sleeps: int, who_is_interrupted: str) -> None:
    """Wherever one side's whole action falls inside the other's, the frame is seen or the bell rings."""
    region = Region.create(64)
    bell = []
    seen: list[bytes] = []

    def publish() -> None:
        assert writer.try_write(b"frame")

    def go_to_sleep() -> None:
        reader.arm()
        seen.extend(reader.read())

    interrupting = Interrupting(0, publish if who_is_interrupted == "reader" else go_to_sleep)
    plain = machine_atomics()
    writer = RingWriter(region, 0, interrupting if who_is_interrupted == "writer" else plain, lambda: bell.append(1))
    reader = RingReader(region, 0, interrupting if who_is_interrupted == "reader" else plain, no_bell)
    for _ in range(earlier_sleeps):
        reader.arm()
        publish()
        reader.disarm()
        assert reader.read() == [b"frame"]
    assert len(bell) == earlier_sleeps
    bell.clear()
    interrupting.countdown = at
    (go_to_sleep if who_is_interrupted == "reader" else publish)()
    interrupting.finish()
    assert seen or bell
    assert seen + reader.read() == [b"frame"]
    region.unmap()
    os.close(region.memfd)


@pytest.mark.parametrize("at", range(1, 9))
@pytest.mark.parametrize("who_is_interrupted", ["reader", "writer"])
def test_a_writer_never_sleeps_through_freed_space(at: int, who_is_interrupted: str) -> None:
    region = Region.create(64)
    bell = []
    sent: list[bool] = []

    def free_space() -> None:
        assert reader.read() == [b"x" * 24, b"x" * 24]

    def go_to_sleep() -> None:
        writer.arm()
        sent.append(writer.try_write(b"more"))

    interrupting = Interrupting(0, free_space if who_is_interrupted == "writer" else go_to_sleep)
    plain = machine_atomics()
    writer = RingWriter(region, 0, interrupting if who_is_interrupted == "writer" else plain, no_bell)
    reader = RingReader(region, 0, interrupting if who_is_interrupted == "reader" else plain, lambda: bell.append(1))
    assert writer.try_write(b"x" * 24)
    assert writer.try_write(b"x" * 24)
    interrupting.countdown = at
    (go_to_sleep if who_is_interrupted == "writer" else free_space)()
    interrupting.finish()
    assert sent == [True] or bell
    region.unmap()
    os.close(region.memfd)
