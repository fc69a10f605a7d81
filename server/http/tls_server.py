"""uvicorn's server on sockets of any family, with handshakes that are bounded and counted."""

import asyncio
import socket
import ssl
from functools import partial
from typing import Any

import uvicorn

from ..config.config import ConnectionLimits
from .connections import Connections, Place
from .handshakes import TlsAcceptor


class TlsServer(uvicorn.Server):
    """uvicorn leaves handshakes to the event loop, which grants a minute to whoever connects."""

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

    def _connection(self, place: Place | None = None) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        if place is not None:
            make = partial(make, place=place)
        connection: asyncio.Protocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return connection
