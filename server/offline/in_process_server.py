"""A server without a socket: the same application, called in memory from a thread of its own.

So everything that the endpoints can do, a program or a file of requests can have, and nothing of it is written twice.
"""

import asyncio
import contextlib
import secrets
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from functools import partial
from http import HTTPStatus
from typing import Final

import anyio
import httpx
import msgspec

from stentor.engine.processes.exception_groups import first_cause
from stentor.engine.processes.supervisor import Supervisor

from ..app.application import create_app
from ..app.engines import Engines
from ..app.first_engine import fetch, first_engines
from ..app.lifecycle import load_adapters, load_state
from ..app.main_model import open_main
from ..app.startup import StartupDisplay, open_terminal
from ..app.state import ServerState
from ..app.text_side import generation_defaults
from ..batches.calls import post
from ..batches.lines import InProcessResponse
from ..common.keys import KeyDigest, Keyring
from ..config.config import Config
from ..middleware.access_control import AccessControl
from ..text.tokenizers.tokenizer import Tokenizer

_END_SECONDS: Final = 15.0
_NOWHERE: Final = "http://stentor"


class InProcessServerClosed(RuntimeError):
    """The server has been closed, or its engine has been given up."""


class InProcessServer:
    """Models for text, loaded until :meth:`close`. Its methods may be called from any thread but its own."""

    def __init__(self, config: Config) -> None:
        """Blocks until the model has completed a real step.

        Raises :class:`..http.listening.StartError` and :class:`stentor.engine.loading.errors.CheckpointError`.
        """
        self._config = fetch(config.texts_alone())
        self._started: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: httpx.AsyncClient | None = None
        self._end: anyio.Event | None = None
        self._state: ServerState | None = None
        self._unwanted = False
        self._admin_key = secrets.token_hex()
        """Of this process alone."""
        self._why = "the in-process server has been closed"
        # a daemon, or an interpreter whose program forgot to close would wait for it before it runs the closing code
        self._thread = threading.Thread(target=self._run, name="stentor", daemon=True)
        self._thread.start()
        try:
            self._started.result()
        except BaseException:  # also an interrupt: the caller could not close the server it has not got
            self._unwanted = True
            self._tell_to_end()
            raise

    def post(
        self, path: str, body: bytes, *, fill_context: bool = False, admin: bool = False
    ) -> "Future[InProcessResponse]":
        """Sends a request of JSON. The future raises :class:`InProcessServerClosed` once no engine is left.

        ``fill_context``: ``max_tokens`` beyond the context end at its end, instead of being refused. ``admin``: the
        path is one that changes the server.
        """
        loop, client = self._loop, self._client
        if loop is None or client is None:
            raise InProcessServerClosed(self._why)
        send = self._post_as_admin if admin else _post_filling if fill_context else post
        return asyncio.run_coroutine_threadsafe(send(client, path, body), loop)

    async def _post_as_admin(self, client: httpx.AsyncClient, path: str, body: bytes) -> InProcessResponse:
        headers = {"authorization": f"Bearer {self._admin_key}"}
        answer = await client.post(path, content=body, headers=headers)
        return InProcessResponse(answer.status_code, answer.content, answer.headers.get("x-request-id", ""))

    @property
    def tokenizer(self) -> Tokenizer:
        """Of the main model."""
        assert self._state is not None, "it has started"
        return self._state.chat.pool.tokenizer

    def close(self) -> None:
        """Ends running requests, and blocks until the engine has ended. May be called again."""
        self._tell_to_end()
        if threading.current_thread() is not self._thread:  # which may be where a forgotten server is collected
            self._thread.join()

    def _tell_to_end(self) -> None:
        loop, end = self._loop, self._end
        if loop is not None and end is not None:
            with contextlib.suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(end.set)

    def _run(self) -> None:
        try:
            # without sockets uvloop is no faster, and a fault in its native code would take the caller's program along
            anyio.run(self._live)
        except BaseException as error:
            cause = first_cause(error)
            if not self._started.done():
                self._started.set_exception(cause)
            self._why = str(cause)
        finally:
            self._loop = self._client = None

    async def _live(self) -> None:
        config = self._config
        checkpoint = open_main(config)
        defaults = generation_defaults(config.model, checkpoint)
        display = StartupDisplay(open_terminal())
        configs = config.engines()
        with first_engines(configs) as processes:
            engines = Engines(configs, processes, display.update)
            async with contextlib.AsyncExitStack() as at_end, Supervisor() as supervisor:
                engines.start(supervisor)
                supervisor.start("what waits for their end", partial(self._end_with, engines))
                with display:
                    access = AccessControl(Keyring(admin=[KeyDigest(self._admin_key.encode())]))
                    state = await load_state(config, checkpoint, defaults, engines, supervisor, at_end, access)
                    at_end.callback(state.chat.pool.close)
                    at_end.callback(state.chat.grammars.close)
                    await engines.wait_started()
                    await load_adapters(state.registry.adapters, engines.clients)
                self._state = state
                async with self._opened(httpx.ASGITransport(create_app(state))) as end:
                    self._started.set_result(None)
                    await end.wait()
                await state.admission.drained(_END_SECONDS)
                supervisor.cancel()

    @contextlib.asynccontextmanager
    async def _opened(self, transport: httpx.AsyncBaseTransport) -> AsyncIterator[anyio.Event]:
        async with httpx.AsyncClient(transport=transport, base_url=_NOWHERE, timeout=None) as client:
            self._end = anyio.Event()
            self._loop, self._client = asyncio.get_running_loop(), client
            if self._unwanted:
                self._end.set()
            yield self._end
            self._client = None

    async def _end_with(self, engines: Engines) -> None:
        await engines.wait_ended()
        failures = [client.failure for _, client in engines if client.failure is not None]
        self._why = f"the engine has been given up: {failures[0] if failures else 'it ended'}"
        if self._end is not None:
            self._end.set()


async def _post_filling(client: httpx.AsyncClient, path: str, body: bytes) -> InProcessResponse:
    """Sends a request again without ``max_tokens`` if the context has no room for as many."""
    answer = await post(client, path, body)
    if answer.status != HTTPStatus.BAD_REQUEST:
        return answer
    if msgspec.json.decode(answer.body)["error"]["code"] != "context_length_exceeded":
        return answer
    return await post(client, path, msgspec.json.encode({**msgspec.json.decode(body), "max_tokens": None}))
