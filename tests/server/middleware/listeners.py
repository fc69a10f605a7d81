"""The listener that really serves, over a state without a model."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import httpx
import msgspec
import uvicorn

from stentor.protocols.ipc.config import EngineConfig, WorkerConfig
from stentor.server.app.application import create_app
from stentor.server.app.lifecycle import Listener
from stentor.server.app.state import ServerState
from stentor.server.config.config import AccessConfig, Config, HttpConfig
from stentor.server.config.limits import ConnectionLimits
from stentor.server.http.address import listening
from stentor.server.http.connections import Connections
from stentor.server.http.http_protocol import HttpProtocol
from stentor.server.http.listening import address_of
from stentor.tests.server.harness import until


def config_of(access: AccessConfig, host: str = "127.0.0.1") -> Config:
    """On a free port."""
    return Config(engine=EngineConfig(worker=WorkerConfig(model="")), http=HttpConfig(host=host, port=0), access=access)


@asynccontextmanager
async def serving(
    state: ServerState, access: AccessConfig | None = None, connections: Connections | None = None
) -> AsyncIterator[str]:
    """Yields the base URL."""
    app = create_app(state)
    connections = connections or Connections(ConnectionLimits())
    settings = uvicorn.Config(
        app,
        http=partial(HttpProtocol, connections=connections),  # type: ignore[arg-type]  # whatever makes a protocol
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=2,
    )
    listener = Listener(settings, state.access.tls, connections)
    with listening(config_of(access or AccessConfig())) as sock:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.run_until_closed, sock)
            await until(lambda: listener.started)
            try:
                yield address_of(sock, tls=state.access.tls is not None)
            finally:
                with anyio.CancelScope(shield=True):
                    await listener.close()
            tasks.cancel_scope.cancel()


def client(url: str, context: ssl.SSLContext | bool = True, **options: object) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, verify=context, trust_env=False, **options)  # type: ignore[arg-type]


def unix_client(path: Path) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path)), base_url="http://server")


def with_uds(path: Path, mode: int = 0o600) -> AccessConfig:
    access = AccessConfig(uds=path)
    return msgspec.structs.replace(access, uds_mode=type(access.uds_mode)(mode))
