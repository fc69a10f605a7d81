"""The two ends of a channel."""

import asyncio
import os
import time
from collections.abc import Sequence
from typing import Self

from .atomics import Atomics, machine_atomics
from .bells import LoopBells, make_bell, ring, sleep_on
from .errors import ChannelClosed, ChannelError, PeerClosed, PeerDied
from .region import Region
from .ring import Buffer, RingReader, RingSide, RingWriter

DEFAULT_CAPACITY = 1 << 20
"""Bytes of each direction's ring."""

_TO_CHILD, _TO_PARENT = 0, 1


class Endpoint:
    """One side of a channel: sends frames to the peer and receives the peer's, in order.

    It has an asynchronous interface (:meth:`send`, :meth:`receive`), bound to the asyncio loop that first awaits it,
    and a blocking one (:meth:`send_blocking`, :meth:`receive_blocking`, :meth:`try_receive`) for a process without a
    loop. An endpoint uses one of the two. Every call raises :class:`ChannelClosed` after :meth:`close`,
    :class:`PeerDied` after the peer's death (a receive: once all that it had published has been received), and
    :class:`.errors.CorruptChannel` if the shared memory is invalid.
    """

    def __init__(self, region: Region, bells: Sequence[int], outgoing: int, atomics: Atomics) -> None:
        """``bells``: data and space of parent → child, then of child → parent. :meth:`close` closes them."""
        incoming = 1 - outgoing
        self._region = region
        self._fds = [region.memfd, *bells]
        self._data_bell = bells[2 * incoming]
        self._space_bell = bells[2 * outgoing + 1]
        peer_data, peer_space = bells[2 * outgoing], bells[2 * incoming + 1]
        self._writer = RingWriter(region, outgoing, atomics, lambda: ring(peer_data))
        self._reader = RingReader(region, incoming, atomics, lambda: ring(peer_space))
        self._peer_pid = 0
        self._pidfd: int | None = None
        self._dead = False
        self._closed = False
        self._loop_bells: LoopBells | None = None
        self._sending = asyncio.Lock()
        self._receiving = False
        self._returned_at_once = False

    @classmethod
    def attach(cls, fds: Sequence[int], peer_pid: int, *, atomics: Atomics | None = None) -> Self:
        """The child's end, from :attr:`ChannelPair.child_fds` and the parent's pid.

        Takes ownership of the descriptors and makes them non-inheritable.
        """
        if len(fds) != 5:
            raise ChannelError(f"a channel is handed over as 5 descriptors, not {len(fds)}")
        atomics = machine_atomics() if atomics is None else atomics
        for fd in fds:
            os.set_inheritable(fd, False)
        endpoint = cls(Region.attach(fds[0]), fds[1:], _TO_PARENT, atomics)
        try:
            endpoint.watch(peer_pid)
        except BaseException:
            endpoint.close()
            raise
        return endpoint

    def watch(self, pid: int, pidfd: int | None = None) -> None:
        """Set the peer process, whose death ends the channel. Call it before any waiting.

        ``pidfd`` is duplicated; without one, ``pid`` must be alive (a parent, or an unreaped child).
        """
        if self._pidfd is not None:
            raise ChannelError(f"this endpoint already watches process {self._peer_pid}")
        try:
            self._pidfd = os.pidfd_open(pid) if pidfd is None else os.dup(pidfd)
        except ProcessLookupError:
            raise PeerDied(f"the peer process (pid {pid}) is gone") from None
        self._peer_pid = pid

    async def send(self, frame: Buffer) -> None:
        """Send ``frame``; wait while the ring is full. May return without yielding to the loop.

        Concurrent senders take turns. A cancelled send was not sent, or, if the frame is larger than half the ring, is
        dropped by the receiver. Raises :class:`.errors.FrameTooLarge`.
        """
        bells = self._in_loop()
        if self.try_send(frame):
            return
        async with self._sending:
            self._raise_if_gone()
            armed = False
            try:
                for _ in self._writer.write_gradually(frame):
                    if armed:
                        await bells.space.wait()
                    self._raise_if_gone()
                    armed = not armed
                    self._writer.arm()
            finally:
                if armed:
                    self._disarm(self._writer)

    async def receive(self) -> list[bytes]:
        """Receive all frames that are there, oldest first; wait until there is one. One task at a time.

        A cancelled receive loses nothing.
        """
        bells = self._in_loop()
        if self._receiving:
            raise ChannelError("another task is already receiving from this endpoint")
        self._receiving = True
        try:
            if self._returned_at_once:  # let other tasks run if the peer is faster
                self._returned_at_once = False
                await asyncio.sleep(0)
            frames = self._read()
            self._returned_at_once = bool(frames)
            while not frames:
                self._reader.arm()
                try:
                    frames = self._read()
                    if not frames:
                        await bells.data.wait()
                        frames = self._read()
                finally:
                    self._disarm(self._reader)
            return frames
        finally:
            self._receiving = False

    def try_send(self, frame: Buffer) -> bool:
        """Send ``frame`` if the ring has space for all of it and no sender waits; else return False.

        Always False for a frame larger than the ring: await :meth:`send` instead.
        """
        self._raise_if_gone(look=True)
        return not self._sending.locked() and self._writer.try_write(frame)

    def try_receive(self) -> list[bytes]:
        """Receive all frames that are there, oldest first; may be empty."""
        frames = self._read()
        if not frames and self._look_for_death():
            frames = self._read()
        return frames

    def send_blocking(self, frame: Buffer) -> None:
        """Send ``frame``; block while the ring is full. Raises :class:`.errors.FrameTooLarge`."""
        self._raise_if_gone(look=True)
        armed = False
        try:
            for _ in self._writer.write_gradually(frame):
                if armed:
                    self._sleep(self._space_bell, None)
                self._raise_if_gone()
                armed = not armed
                self._writer.arm()
        finally:
            if armed:
                self._disarm(self._writer)

    def receive_blocking(self, timeout: float | None = None) -> list[bytes]:
        """Receive all frames that are there, oldest first; block until there is one.

        Empty after ``timeout`` seconds (None: never).
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        frames = self._read()
        while not frames:
            self._reader.arm()
            try:
                frames = self._read()
                left = None if deadline is None else deadline - time.monotonic()
                if not frames and not self._sleep(self._data_bell, left):
                    return []
            finally:
                self._disarm(self._reader)
        return frames

    def close(self) -> None:
        """Tell the peer, wake own waiters, release memory and descriptors. May be called again."""
        if self._closed:
            return
        self._closed = True
        if self._loop_bells is not None:
            self._loop_bells.close()
        self._writer.close()
        self._reader.close()
        self._region.unmap()
        for fd in self._fds:
            os.close(fd)
        if self._pidfd is not None:
            os.close(self._pidfd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> list[bytes]:
        # Check the peer before the ring, so that all it published while alive is read.
        gone = self._gone()
        frames = self._reader.read()
        if gone is not None and not frames:
            raise gone
        return frames

    def _gone(self) -> PeerDied | None:
        if self._closed:
            raise ChannelClosed("the channel was closed on this side")
        if self._reader.peer_closed():
            return PeerClosed(f"the peer process (pid {self._peer_pid}) closed the channel")
        if self._dead:
            return PeerDied(f"the peer process (pid {self._peer_pid}) is gone")
        return None

    def _raise_if_gone(self, look: bool = False) -> None:
        if look:
            self._look_for_death()
        if (gone := self._gone()) is not None:
            raise gone

    def _look_for_death(self) -> bool:
        """Ask the kernel, unless a loop watches the peer; returns whether it was just found dead."""
        if self._dead or self._closed or self._loop_bells is not None or self._pidfd is None:
            return False
        _, self._dead = sleep_on(None, self._pidfd, 0)
        return self._dead

    def _disarm(self, side: RingSide) -> None:
        if not self._closed:
            side.disarm()

    def _sleep(self, bell: int, timeout: float | None) -> bool:
        happened, dead = sleep_on(bell, self._watched(), timeout)
        self._dead |= dead
        return happened

    def _in_loop(self) -> LoopBells:
        if self._closed:
            raise ChannelClosed("the channel was closed on this side")
        if self._loop_bells is None:
            self._loop_bells = LoopBells(self._data_bell, self._space_bell, self._watched(), self._note_death)
        return self._loop_bells

    def _watched(self) -> int:
        if self._pidfd is None:
            raise ChannelError("name the peer with watch() before waiting for it: its death would go unnoticed")
        return self._pidfd

    def _note_death(self) -> None:
        self._dead = True


class ChannelPair:
    """A new channel in the parent: its endpoint, and the descriptors for the child's."""

    def __init__(self, parent: Endpoint, child_fds: tuple[int, ...]) -> None:
        self.parent = parent
        self.child_fds = child_fds
        """Descriptors to pass to the child. The parent owns them; valid until ``parent`` is closed."""

    @classmethod
    def create(cls, capacity: int = DEFAULT_CAPACITY, *, atomics: Atomics | None = None) -> Self:
        """Two rings of ``capacity`` bytes (a power of two). Raises :class:`ChannelError` off Linux."""
        atomics = machine_atomics() if atomics is None else atomics
        region = Region.create(capacity)
        bells: list[int] = []
        try:
            for _ in range(4):
                bells.append(make_bell())
        except OSError as error:
            region.unmap()
            for fd in (region.memfd, *bells):
                os.close(fd)
            raise ChannelError(f"cannot make a channel's doorbells: {error.strerror}") from error
        parent = Endpoint(region, bells, _TO_CHILD, atomics)
        return cls(parent, (region.memfd, *bells))
