"""uvicorn's server on sockets of any family, with a bound on the TLS handshake."""

import asyncio
import socket
import ssl
from typing import Any

import uvicorn

from . import tls


class TlsServer(uvicorn.Server):
    """uvicorn leaves the time for a handshake to the event loop, which grants a minute to whoever connects."""

    def __init__(self, config: uvicorn.Config, tls_context: ssl.SSLContext | None = None) -> None:
        super().__init__(config)
        self._tls = tls_context

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        loop = asyncio.get_running_loop()
        options: dict[str, Any] = {"backlog": self.config.backlog}
        if self._tls is not None:
            options |= {"ssl": self._tls, "ssl_handshake_timeout": tls.HANDSHAKE_SECONDS}
        self.servers = []
        for sock in sockets or []:
            create = loop.create_unix_server if sock.family == socket.AF_UNIX else loop.create_server
            self.servers.append(await create(self._connection, sock=sock, **options))
        self.started = True

    def _connection(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        connection: asyncio.Protocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return connection
