"""From a configuration to a listening server, and from a signal to an orderly end.

The socket is bound first, so that a port in use is noticed before a model is loaded. The engines were launched before
this module was imported. They load their models in parallel, while this process loads the tokenizer and begins to
answer ``/ping`` and ``/health``.
"""

import contextlib
import gc
import logging
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import anyio
import anyio.abc
import uvicorn

from stentor.engine.client.errors import EngineAsleep, EngineUnavailable
from stentor.engine.client.replicas import AnyEngineClient
from stentor.engine.loading.checkpoint import Checkpoint
from stentor.engine.loading.download.hub import DEFAULT_MODEL
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.model_config.seq2seq.text import TextToTextConfig
from stentor.engine.processes.exception_groups import first_cause
from stentor.engine.processes.launch import EngineProcess
from stentor.engine.processes.supervisor import ChildFailed, Supervisor
from stentor.engine.worker.memory import format_bytes

from ..api.responses.resuming import keep_resuming
from ..common.exit_codes import DONE, FAILED
from ..common.files import reload_on_hangup
from ..config.adapters import AdapterRegistry
from ..config.config import Config
from ..config.limits import ConnectionLimits
from ..config.model_facts import facts_of
from ..config.model_registry import ModelRegistry, ModelRole
from ..generation.chat_model import GenerationDefaults
from ..generation.picture_prompt import PicturePrompt
from ..http.address import listening, warn_if_open
from ..http.connections import Connections
from ..http.handshakes import TlsServer
from ..http.http_protocol import HttpProtocol
from ..http.listening import StartError, address_of, allow_connections
from ..http.websocket_protocol import WebSocketProtocol
from ..media.collect import Accepted
from ..media.processors.mmproj import given_files
from ..middleware.access_control import AccessControl
from ..observability.metrics import Metrics
from ..observability.observer import open_observer
from ..overload.memory_budget import Trimmer, default_budget
from ..overload.slow_readers import ReaderLimits
from ..state.admission_control import ModelBackend
from ..storage.opening import StoreRefused, opened_store
from ..text.pool import TokenizationBudget
from ..text.tokenizers.grammar_tokens import vocabulary_of
from .application import create_answering_app, create_app
from .auxiliary_models import Opening, open_auxiliary_models
from .draining import drain_on_signals
from .engines import Engines
from .main_model import open_main
from .media import MediaOpener, asking_of, spec_of, taken_of, width_of
from .startup import StartupDisplay, first_steps, open_terminal, report_ready
from .state import OpenedChat, ServerState, compose
from .text_side import TextSide, generation_defaults, open_text_side

logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 5
"""For connections to finish writing once their requests have ended."""


class Listener(TlsServer):
    """uvicorn without its signal handlers: draining is ours."""

    def __init__(
        self, config: uvicorn.Config, tls: ssl.SSLContext | None = None, connections: Connections | None = None
    ) -> None:
        super().__init__(config, tls, connections)
        self._ended = anyio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def run_until_closed(self, sock: socket.socket) -> None:
        try:
            await self.serve([sock])
        finally:
            for server in getattr(self, "servers", ()):  # uvicorn leaves them open where it is cancelled
                server.close()
            self._ended.set()

    async def close(self) -> None:
        """Accepts no more connections and lets open ones write their output, for a bounded time."""
        self.should_exit = True
        with anyio.move_on_after(_CLOSE_SECONDS + 1):
            await self._ended.wait()


def serve(config: Config, engines: Mapping[ModelRole, Sequence[EngineProcess]], access: AccessControl) -> int:
    """Runs the server until a signal or an engine ends it; returns the exit code.

    ``config`` must have been located, and ``engines`` launched as ``config.engines`` says. Raises
    :class:`..http.listening.StartError`.
    """
    allow_connections()
    with listening(config) as sock:
        warn_if_open(config, sock, keys=access.keys.required)
        with _as_start_error(CheckpointError):
            checkpoint = open_main(config)
            defaults = generation_defaults(config.model, checkpoint)
        run = partial(_run, config, checkpoint, defaults, sock, engines, access)
        ended = anyio.run(_ended, run, backend_options={"use_uvloop": True})
        if isinstance(ended, int):
            return ended
        if isinstance(ended, ChildFailed):
            logger.critical("the server gives up: %s", ended, exc_info=ended)
            return FAILED
        raise ended


async def _ended(run: Callable[[], Awaitable[int]]) -> int | BaseException:
    """The exit code, or the failure that ended ``run``.

    It is no exception of the task: if SIGTERM ends the loop while a failed start closes, asyncio would log a traceback.
    """
    failure: BaseException
    try:
        return await run()
    except* (StartError, ChildFailed) as group:
        failure = first_cause(group)
    return failure


async def _run(
    config: Config,
    checkpoint: Checkpoint,
    defaults: GenerationDefaults,
    sock: socket.socket,
    processes: Mapping[ModelRole, Sequence[EngineProcess]],
    access: AccessControl,
) -> int:
    terminal = open_terminal()
    display = StartupDisplay(terminal)
    engines = Engines(config.engines(), processes, display.update)
    code = DONE

    def end(with_code: int) -> None:
        nonlocal code
        code = with_code
        supervisor.cancel()

    async with contextlib.AsyncExitStack() as at_end, Supervisor() as supervisor:
        engines.start(supervisor)
        with display:
            state = await load_state(config, checkpoint, defaults, engines, supervisor, at_end, access)
            at_end.push_async_callback(state.responses.close)
            at_end.push_async_callback(state.for_realtime.calls.close)
            listener = make_listener(state, config.limits.connection)
            _start_services(state, listener, sock, supervisor, end)
            ready = await engines.wait_started()
            await load_adapters(state.registry.adapters, engines.clients)
        names = {model.kind: model.names[0] for model in state.registry}
        recovery = state.metrics.recovery
        engines.watch_recoveries(lambda kind, process, seconds: recovery[names[kind]][process].observe(seconds))
        gc.freeze()  # permanent objects need not be scanned by every full collection
        supervisor.start("what was begun", lambda: keep_resuming(state.for_responses))
        began = min(process.began for each in processes.values() for process in each)
        speech = state.auxiliary.speech
        report_ready(
            terminal,
            {names[kind]: each for kind, each in ready.items()},
            {} if speech is None else {names["speech"]: speech.pid},
            address_of(sock, tls=access.tls is not None),
            time.monotonic() - began,
            _first_steps(config, access, sock),
        )
        for processor in state.media_processors:
            supervisor.start("the start of a media processor", processor.warm_up)
        await engines.wait_ended()
        # every stream has its error by now, which remains to be written
        await state.admission.drained(_CLOSE_SECONDS)
        await listener.close()
        supervisor.cancel()
        return FAILED
    return code


def _start_services(
    state: ServerState, listener: Listener, sock: socket.socket, supervisor: Supervisor, end: Callable[[int], None]
) -> None:
    """Starts the tasks that need no engine to be ready; ``end`` gets the exit code after a signal."""
    supervisor.start("the listener", lambda: listener.run_until_closed(sock))
    supervisor.start("the batches", lambda: state.batches.run(create_answering_app(state)))
    supervisor.start("the trimmer", Trimmer().run)
    supervisor.start("the reloader", lambda: reload_on_hangup(state.access.reloadable))
    supervisor.start(
        "the signal handler",
        lambda: drain_on_signals(
            state.admission,
            listener.close,
            state.config.http.shutdown_timeout,
            end,
            lambda: state.control.no_request_ends,
        ),
    )


def _first_steps(config: Config, access: AccessControl, sock: socket.socket) -> str:
    """Commands to try with the default model; "" with another model or on a Unix socket."""
    if config.model.name != DEFAULT_MODEL or sock.family == socket.AF_UNIX:
        return ""
    address = address_of(sock, tls=access.tls is not None)
    return first_steps(f"{address}{access.root_path}", keys=access.keys.required)


async def load_adapters(adapters: AdapterRegistry, clients: Mapping[ModelRole, AnyEngineClient]) -> None:
    """Loads the operator's adapters, so that a wrong one is an error at start. Raises
    :class:`..http.listening.StartError`."""
    for adapter in adapters:
        try:
            answer = await clients[adapters.kind_of(adapter.name)].load_adapter(adapter)
        except EngineAsleep:
            return  # put to sleep while it started: each is loaded for the first request that names it
        except EngineUnavailable as error:
            raise StartError(str(error)) from error
        if answer.error:
            raise StartError(f"--lora-modules {adapter.name}={adapter.path}: {answer.error}")


@contextlib.contextmanager
def _as_start_error(*refusals: type[Exception]) -> Iterator[None]:
    try:
        yield
    except refusals as error:
        raise StartError(str(error)) from error


async def load_state(
    config: Config,
    checkpoint: Checkpoint,
    defaults: GenerationDefaults,
    engines: Engines,
    supervisor: Supervisor,
    at_end: contextlib.AsyncExitStack,
    access: AccessControl,
) -> ServerState:
    """The server's state, with tokenizers loaded; the engines may still be starting.

    ``at_end`` closes the store, the observer, and all models but the main one.

    Raises :class:`..http.listening.StartError`.
    """
    inflight = config.overload.max_inflight_bytes or default_budget()
    logger.info("requests and answers may hold %s of memory together (--max-inflight-bytes)", format_bytes(inflight))
    room = TokenizationBudget(inflight // 2)
    with _as_start_error(CheckpointError, StoreRefused):
        text = await _open_text(config, checkpoint, defaults, room)
        store = await opened_store(config.store)
    client = engines.clients[config.main]
    if config.main == "chat":
        client.set_vocabulary(partial(vocabulary_of, text.pool.tokenizer, text.defaults.eos_token_ids))
    with _as_start_error(CheckpointError):
        spec = spec_of(checkpoint) if config.main == "chat" else None
    taken = taken_of(spec, config.media)
    asking = asking_of(taken, checkpoint)
    registry = _registry_of(config, transcribes=asking is not None)
    beside: dict[ModelRole, AnyEngineClient] = {kind: each for kind, each in engines.clients.items() if kind != "chat"}
    name = config.model.served_names[0]
    metrics = Metrics(name, client, {model.names[0]: beside[model.kind] for model in registry if model.kind in beside})
    opening = Opening(config, engines, metrics.registry, room, MediaOpener(config, store, metrics.registry), at_end)
    with _as_start_error(CheckpointError):
        media = opening.media.open(given_files(checkpoint) or checkpoint.folder, name, taken, width_of(checkpoint))
    at_end.callback(media.close)
    auxiliary = await open_auxiliary_models(opening, supervisor, transcribes=asking is not None)
    backends: dict[ModelRole, ModelBackend] = {"chat": client, **beside}
    if auxiliary.speech is not None:
        backends["speech"] = auxiliary.speech
    vocab_size, accepted = checkpoint.config.vocab_size, Accepted.of(spec, config.media)
    start: tuple[int, ...] = ()
    picture: PicturePrompt | None = None
    if isinstance(checkpoint.config, TextToTextConfig):
        start = checkpoint.config.decoder_start if checkpoint.config.longest_text else ()
        picture = PicturePrompt.of(checkpoint.config)
    width = width_of(checkpoint) if config.media.prompt_embeds and config.main == "chat" else 0
    facts = facts_of(checkpoint)
    main = OpenedChat(config.model, client, text, vocab_size, media, accepted, asking, facts, start, picture, width)
    observer = open_observer(config.observe, metrics, name)
    at_end.callback(observer.close)
    at_end.push_async_callback(store.close)
    return compose(
        config,
        main,
        access=access,
        observer=observer,
        metrics=metrics,
        registry=registry,
        store=store,
        auxiliary=auxiliary,
        backends=backends,
        controls=[each.controls for each in engines.clients.values()],
    )


async def _open_text(
    config: Config, checkpoint: Checkpoint, defaults: GenerationDefaults, room: TokenizationBudget
) -> TextSide:
    """Raises :class:`stentor.engine.loading.errors.CheckpointError`."""
    drafting = config.engine.worker.speculative
    draft = Path(drafting.model) if drafting is not None and drafting.model else None
    text = await anyio.to_thread.run_sync(
        open_text_side, config.model, checkpoint, defaults, config.limits.template, room, draft
    )
    logger.info("parsers: %s", text.output)
    return text


def _registry_of(config: Config, *, transcribes: bool) -> ModelRegistry:
    """All models of the server. ``transcribes``: the chat model makes transcripts too. Raises
    :class:`..http.listening.StartError`."""
    with _as_start_error(CheckpointError, ValueError):
        adapters = config.adapters.registry(
            enabled=config.engine.worker.enable_lora, main=config.main, kinds=config.adapted_kinds
        )
        return config.registry(transcribes=transcribes, adapters=adapters)


def make_listener(state: ServerState, connections: ConnectionLimits) -> Listener:
    limits = state.config.overload
    on_drop = state.metrics.cut_off["slow_reader"].inc
    readers = ReaderLimits(limits.stream_buffer, limits.slow_reader_timeout, on_drop)
    counted = Connections.within_descriptors(connections)
    state.metrics.server.connections = counted
    return Listener(
        uvicorn.Config(
            create_app(state),
            loop="uvloop",
            # any protocol will do
            http=partial(  # type: ignore[arg-type]
                HttpProtocol,
                readers=readers,
                connections=counted,
                root_path=state.access.root_path,
                memory=state.admission.memory,
            ),
            ws=WebSocketProtocol,
            ws_max_size=connections.max_message_bytes,
            ws_per_message_deflate=False,  # a small message could expand to any size
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # client addresses are not used; trusted proxies would need an option
            timeout_graceful_shutdown=_CLOSE_SECONDS,
        ),
        state.access.tls,
        counted,
    )
