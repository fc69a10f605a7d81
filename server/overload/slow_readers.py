"""Clients that stop reading. Their data waits in the kernel, then in the transport, then nowhere.

A stream is paused once ``buffer`` bytes wait in its transport: its tokens stay in the engine client's stream, merged by
choice, and are bounded by the request's ``max_tokens``. The engine continues, so a client that reads again gets the
rest at once. A client that takes next to nothing for ``seconds`` is disconnected, and its request aborted. Requiring
only some progress would be too weak: a byte now and then would hold a connection and its tokens for ever.
"""

import asyncio
import contextlib
import fcntl
import logging
import socket
import struct
import termios
from collections.abc import Callable
from typing import Final

import msgspec

logger = logging.getLogger(__name__)

_LEAST_SHARE: Final = 8
"""A client must take this part of the buffer in its time: of 64 KiB in 30 s, some 270 bytes a second."""
_LEAST_SHARE_WAITING: Final = 16
"""And this fraction of the waiting bytes: a whole answer can have many megabytes, which a few bytes a second would hold
for days."""
_LOOKS: Final = 4
"""At a connection, in the time that a client has."""


def _ignore() -> None:
    pass


class ReaderLimits(msgspec.Struct, frozen=True):
    buffer: int = 64 << 10
    """Bytes that may wait in the transport, and again unsent in the kernel, before a stream is paused."""
    seconds: float = 30.0
    """With next to nothing taken, until the connection is dropped; 0 waits for ever."""
    on_drop: Callable[[], None] = _ignore


DEFAULT_LIMITS: Final = ReaderLimits()


class ReaderWatch:
    """Disconnects one client that takes next to nothing of its waiting data.

    It is checked only while nothing more is added: paused, closing, or sending finished data. Then waiting data can
    only shrink, and checking now and then is enough.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        limits: ReaderLimits,
        request_id: Callable[[], str] = str,
        to_come: Callable[[], int] = int,
    ) -> None:
        """``request_id`` gives that of the response under way, for the log; ``to_come``, how many bytes of it are made
        but not written yet."""
        self._request_id = request_id
        self._to_come = to_come
        self._loop = loop
        self._transport = transport
        self._limits = limits
        self._socket: socket.socket | None = transport.get_extra_info("socket")
        self._paused = False
        self._waiting: int | None = None
        """Bytes at the last progress; None while nothing is checked."""
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        transport.set_write_buffer_limits(high=limits.buffer)
        if self._socket is not None:
            # the kernel would otherwise take megabytes for a client that reads none of them
            with contextlib.suppress(OSError):  # not TCP
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, limits.buffer)
        if limits.seconds:
            self._look_later()

    def pause(self) -> None:
        """The transport's buffer is full."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        if not self._to_come():
            self._waiting = None

    def stop(self) -> None:
        """The connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self) -> None:
        self._timer = self._loop.call_later(self._limits.seconds / _LOOKS, self._look)

    def _look(self) -> None:
        buffered = self._transport.get_write_buffer_size()
        closing = self._transport.is_closing()
        if closing and not buffered:
            return
        to_come = self._to_come()
        if not buffered or not (self._paused or closing or to_come):
            self._waiting = None
        else:
            waiting = buffered + self._unacknowledged() + to_come
            now = self._loop.time()
            if self._waiting is None or waiting <= self._waiting - self._least(self._waiting):
                self._waiting, self._since = waiting, now
            elif now - self._since >= self._limits.seconds:
                self._drop(waiting)
                return
        self._look_later()

    def _least(self, waiting: int) -> int:
        """Bytes that must be taken of ``waiting`` ones."""
        return max(self._limits.buffer // _LEAST_SHARE, waiting // _LEAST_SHARE_WAITING)

    def _drop(self, waiting: int) -> None:
        logger.warning(
            "dropped a client that did not read for %g s; %d bytes waited for it",
            self._limits.seconds,
            waiting,
            extra={"request_id": self._request_id()},
        )
        self._timer = None
        self._limits.on_drop()
        self._transport.abort()

    def _unacknowledged(self) -> int:
        """Bytes that the kernel holds for the client."""
        if self._socket is None:
            return 0
        try:
            (count,) = struct.unpack("i", fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, bytes(4)))
        except OSError:
            return 0
        return int(count)
