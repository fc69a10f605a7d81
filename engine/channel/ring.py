"""One direction of a channel: a ring of records with one writer and one reader.

Positions count bytes since the start and never wrap (a u64 suffices); ``position % capacity`` is the place in the ring.
``tail - head`` bytes are in use, so full and empty differ. A record is one fragment of a frame, aligned to 8 bytes, so
a header never wraps; a payload may::

    u32 length      payload bytes of this fragment, at most capacity / 2 - 8
    u16 flags       bit 0 FIRST: a frame begins here; bit 1 LAST: it ends here
    u16 tag         0x5E71
    payload, then padding up to a multiple of 8

A frame of up to capacity / 2 - 8 bytes is one record. A larger one, up to ``MAX_FRAME`` bytes, is cut into fragments,
FIRST on the first and LAST on the last. A FIRST that follows an unfinished frame means that its sender was cancelled:
the reader drops the fragments. The position is stored after the bytes, so only whole fragments are visible.

Sleeping and waking. Each side has a word ``waits``, written by it alone: odd while it sleeps or is about to, a new
number each time. A sleeper (1) makes its word odd, (2) checks the ring once more, (3) sleeps on its doorbell only if
there is still nothing to do, (4) clears the doorbell and starts over. A publisher (1) stores its position, (2) reads
the peer's word, (3) rings if it is odd and not a number that it has rung for before. Stores and loads are sequentially
consistent (see :mod:`.atomics`), so either the sleeper's second check sees the position, or the publisher sees the odd
word and rings. A bell is an eventfd, which stays rung until cleared, so a ring between (2) and (3) is not lost. A bell
left over from an earlier sleep costs one needless check.
"""

from collections.abc import Callable, Generator
from typing import Final

from .atomics import Atomics
from .errors import CorruptChannel, FrameTooLarge
from .region import CONTROL_BYTES, CONTROL_START, DATA_START, READER_LINE, Region

MAX_FRAME: Final = 64 << 20
"""Bytes of the largest frame."""

HEADER: Final = 8
FIRST: Final = 1
LAST: Final = 2
TAG: Final = 0x5E71

Buffer = bytes | bytearray | memoryview


def record_bytes(length: int) -> int:
    """Bytes that a fragment of ``length`` payload bytes takes in the ring."""
    return HEADER + (length + 7 & ~7)


class RingSide:
    """The common part of writer and reader: access to the own control line and the peer's."""

    def __init__(self, region: Region, direction: int, atomics: Atomics, ring_bell: Callable[[], object]) -> None:
        """``direction`` is 0 for parent → child, 1 for child → parent; ``ring_bell`` wakes the peer."""
        self._words = region.words
        self._data = region.data
        self._capacity = region.capacity
        self._start = DATA_START + direction * region.capacity
        self._end = self._start + region.capacity
        self._load = atomics.load
        self._store = atomics.store
        self._ring_bell = ring_bell
        control = (CONTROL_START + direction * CONTROL_BYTES) // 8
        self._writer_line = control
        self._reader_line = control + READER_LINE // 8
        self._own = self._peer = 0
        self._position = 0
        self._ticket = 0
        self._rung_for = 0

    def arm(self) -> None:
        """Announce that this side is about to sleep. The caller must check the ring once more before it sleeps."""
        self._ticket += 1
        self._store(self._words, self._own + 1, self._ticket)

    disarm = arm

    def close(self) -> None:
        """Tell the peer that this side is closed."""
        self._store(self._words, self._own + 2, 1)
        self._ring_bell()

    def peer_closed(self) -> bool:
        return self._load(self._words, self._peer + 2) != 0

    def _publish(self) -> None:
        self._store(self._words, self._own, self._position)
        ticket = self._load(self._words, self._peer + 1)
        if ticket & 1 and ticket != self._rung_for:
            self._rung_for = ticket
            self._ring_bell()


class RingWriter(RingSide):
    """The sending side."""

    def __init__(self, region: Region, direction: int, atomics: Atomics, ring_bell: Callable[[], object]) -> None:
        super().__init__(region, direction, atomics, ring_bell)
        self._own, self._peer = self._writer_line, self._reader_line
        self._head = 0
        self._largest = region.capacity // 2 - HEADER

    def try_write(self, frame: Buffer) -> bool:
        """Publish ``frame`` if all of it fits; otherwise return False and leave the ring unchanged."""
        length = len(frame)
        if length <= self._largest:
            if not self._has_room(record_bytes(length)):
                return False
            self._put(frame, FIRST | LAST)
            self._publish()
            return True
        _check_frame_size(length)
        whole, rest = divmod(length, self._largest)
        need = whole * record_bytes(self._largest) + (record_bytes(rest) if rest else 0)
        if not self._has_room(need):
            return False
        next(self.write_gradually(frame), None)  # all of it fits, so this ends without yielding
        return True

    def write_gradually(self, frame: Buffer) -> Generator[None, None, None]:
        """Publish ``frame`` fragment by fragment; yields whenever there is no space for the next one."""
        length = len(frame)
        _check_frame_size(length)
        view = memoryview(frame)
        sent = 0
        while True:
            end = min(sent + self._largest, length)
            while not self._has_room(record_bytes(end - sent)):
                yield
            self._put(view[sent:end], (FIRST if sent == 0 else 0) | (LAST if end == length else 0))
            self._publish()
            if end == length:
                return
            sent = end

    def _has_room(self, need: int) -> bool:
        if self._position - self._head + need <= self._capacity:
            return True
        head = self._load(self._words, self._peer)
        if not self._head <= head <= self._position or head & 7:
            raise CorruptChannel(
                f"the channel is corrupt: the reader's position is {head}, it was {self._head} and "
                f"{self._position} bytes have been written"
            )
        self._head = head
        return self._position - head + need <= self._capacity

    def _put(self, fragment: Buffer, flags: int) -> None:
        length = len(fragment)
        at = self._start + (self._position & self._capacity - 1)
        self._words[at >> 3] = length | flags << 32 | TAG << 48
        at += HEADER
        if at + length <= self._end:
            self._data[at : at + length] = fragment
        else:
            view = memoryview(fragment)
            cut = self._end - at
            self._data[at : self._end] = view[:cut]
            self._data[self._start : self._start + length - cut] = view[cut:]
        self._position += record_bytes(length)


class RingReader(RingSide):
    """The receiving side."""

    def __init__(self, region: Region, direction: int, atomics: Atomics, ring_bell: Callable[[], object]) -> None:
        super().__init__(region, direction, atomics, ring_bell)
        self._own, self._peer = self._reader_line, self._writer_line
        self._pieces: list[bytes] | None = None
        self._pieces_bytes = 0

    def read(self) -> list[bytes]:
        """Take all complete frames, oldest first; at most one ring's worth.

        Raises :class:`CorruptChannel`, then and in later calls, if the memory holds what no writer writes.
        """
        tail = self._load(self._words, self._peer)
        used = tail - self._position
        if used == 0:
            return []
        if not 0 < used <= self._capacity or used & 7:
            raise CorruptChannel(
                f"the channel is corrupt: the writer's position is {tail}, the reader's {self._position}, "
                f"the ring has {self._capacity} bytes"
            )
        frames: list[bytes] = []
        position = self._position
        while position < tail:
            at = self._start + (position & self._capacity - 1)
            header = self._words[at >> 3]
            length, flags = header & 0xFFFF_FFFF, header >> 32 & 0xFFFF
            record = record_bytes(length)
            if header >> 48 != TAG or flags > FIRST | LAST or record > tail - position:
                raise CorruptChannel(f"the channel is corrupt: record header {header:#018x} at {position}")
            payload = self._copy(at + HEADER, length)
            position += record
            if flags == FIRST | LAST:
                self._pieces = None
                frames.append(payload)
            elif (frame := self._join(payload, flags)) is not None:
                frames.append(frame)
        self._position = tail
        self._publish()
        return frames

    def _copy(self, at: int, length: int) -> bytes:
        if at + length <= self._end:
            return bytes(self._data[at : at + length])
        return b"".join((self._data[at : self._end], self._data[self._start : at + length - self._capacity]))

    def _join(self, payload: bytes, flags: int) -> bytes | None:
        if flags & FIRST:
            self._pieces, self._pieces_bytes = [], 0
        elif self._pieces is None:
            raise CorruptChannel("the channel is corrupt: a fragment of a frame that never began")
        self._pieces_bytes += len(payload)
        if self._pieces_bytes > MAX_FRAME:
            raise CorruptChannel(f"the channel is corrupt: a frame of more than {MAX_FRAME} bytes")
        self._pieces.append(payload)
        if not flags & LAST:
            return None
        frame = b"".join(self._pieces)
        self._pieces = None
        return frame


def _check_frame_size(length: int) -> None:
    if length > MAX_FRAME:
        raise FrameTooLarge(f"a frame of {length} bytes is more than a channel carries ({MAX_FRAME}); split it")
