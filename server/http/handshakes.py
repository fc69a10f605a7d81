"""Accepts connections and performs TLS handshakes. Connections count from the moment they are accepted.

Event loops do both in one, but report a connection only after its handshake: a client that begins many and finishes
none could use all descriptors.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import uvicorn

from ..common.task_scope import TaskScope
from ..config.limits import ConnectionLimits
from . import tls
from .connections import Connections, ConnectionSlot

_FOR_WANT_OF_ROOM: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_PAUSE_SECONDS: Final = 0.1
"""Before the next try where the system has no room: the connection still waits, and would be reported at once again."""


class TlsAcceptor:
    """One listening socket, from :meth:`start` to :meth:`close`; the rest of an ``asyncio.Server`` is not needed."""

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        connections: Connections,
        make_protocol: Callable[[ConnectionSlot], asyncio.Protocol],
    ) -> None:
        """A protocol gives back the place it was made with once its connection is lost."""
        self._sock = sock
        self._context = context
        self._connections = connections
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._tasks = TaskScope("TLS handshakes")

    def start(self) -> None:
        self._sock.setblocking(False)
        self._tasks.start(self._accept())

    def close(self) -> None:
        """Takes no more, and ends the handshakes under way. May be called again."""
        self._tasks.cancel()

    async def wait_closed(self) -> None:
        await self._tasks.aclose()

    async def _accept(self) -> None:
        while True:
            try:
                connection, peername = await self._loop.sock_accept(self._sock)
            except OSError as error:  # or it was gone before it was taken
                if error.errno in _FOR_WANT_OF_ROOM:
                    await asyncio.sleep(_PAUSE_SECONDS)
                continue
            place = self._connections.enter(peername)
            if place.without_a_word:
                self._connections.refused[HTTPStatus.TOO_MANY_REQUESTS] += 1
                place.leave()
                connection.close()
            else:
                self._tasks.start(self._shake_hands(connection, place))

    async def _shake_hands(self, connection: socket.socket, place: ConnectionSlot) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._make_protocol(place),
                connection,
                ssl=self._context,
                ssl_handshake_timeout=tls.PROBE_HANDSHAKE_SECONDS if place.only_probes else tls.HANDSHAKE_SECONDS,
            )
        except OSError:  # no handshake, or not in time
            place.leave()
        except BaseException:
            place.leave()
            raise


class TlsServer(uvicorn.Server):
    """uvicorn leaves handshakes to the event loop, which allows a minute for each."""

    def __init__(
        self,
        config: uvicorn.Config,
        tls_context: ssl.SSLContext | None = None,
        connections: Connections | None = None,
    ) -> None:
        """``connections`` must be those that ``config``'s protocol counts in; they are only used with TLS."""
        super().__init__(config)
        self._tls = tls_context
        self._connections = connections or Connections(ConnectionLimits())

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        self.servers = [await self._serve_on(sock) for sock in sockets or []]
        self.started = True

    async def _serve_on(self, sock: socket.socket) -> Any:
        if self._tls is not None:
            acceptor = TlsAcceptor(sock, self._tls, self._connections, self._connection)
            sock.listen(self.config.backlog)
            acceptor.start()
            return acceptor
        loop = asyncio.get_running_loop()
        create = loop.create_unix_server if sock.family == socket.AF_UNIX else loop.create_server
        return await create(self._connection, sock=sock, backlog=self.config.backlog)

    def _connection(self, place: ConnectionSlot | None = None) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        if place is not None:
            make = partial(make, place=place)
        connection: asyncio.Protocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return connection
