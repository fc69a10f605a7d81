"""What the routes of one server share: the model it serves and the requests that are live."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import anyio

from stentor.engine.client import EngineClient
from stentor.protocols.openai.errors import BadRequest

from .errors import Unavailable
from .metrics import Metrics
from .sse import KEEP_ALIVE_SECONDS
from .text.pool import TokenizerPool


@dataclass(frozen=True)
class GenerationDefaults:
    """What the model's ``generation_config.json`` says; a request's own values beat these."""

    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    eos_token_ids: tuple[int, ...] = ()


@dataclass
class ServerState:
    """Owned by the server process; read by routes, changed by :mod:`.lifecycle` and the requests themselves."""

    served_names: tuple[str, ...]
    """Never empty; the first is the one that metrics carry."""
    client: EngineClient
    pool: TokenizerPool
    metrics: Metrics
    vocab_size: int
    """Token ids that a client may name lie in [0, vocab_size)."""
    root: str = ""
    """What the operator asked to be served, for the model card; empty means the first served name."""
    defaults: GenerationDefaults = GenerationDefaults()
    api_keys: tuple[str, ...] = ()
    keep_alive: float = KEEP_ALIVE_SECONDS
    created: int = field(default_factory=lambda: int(time.time()))
    draining: bool = False
    """Once true, requests for generation are refused."""
    _live: int = 0
    _idle: anyio.Event = field(default_factory=anyio.Event)

    @property
    def max_model_len(self) -> int | None:
        """Longest sequence, prompt and output; None until the engine is ready."""
        ready = self.client.ready
        return None if ready is None else ready.max_model_len

    @property
    def live_requests(self) -> int:
        """Requests for generation between admission and the last byte of their response."""
        return self._live

    def check_available(self) -> None:
        """Raises Unavailable while the engine starts, after it failed, and while the server drains."""
        if self.draining:
            raise Unavailable("The server is shutting down and takes no new requests.", "draining")
        if self.client.failure is not None:
            raise Unavailable("The engine has stopped; the server cannot generate.", "failed")
        if self.client.ready is None:
            raise Unavailable("The model is still loading; try again shortly.", "starting")

    def resolve_model(self, name: str | None) -> str:
        """The served name that a request meant; None means the first. Raises BadRequest (404)."""
        if name is None:
            return self.served_names[0]
        if name not in self.served_names:
            shown = name if len(name) <= 128 else name[:128] + "…"
            raise BadRequest(f"The model `{shown}` does not exist.", "model", "model_not_found", status=404)
        return name

    @contextmanager
    def live(self) -> Iterator[None]:
        """Counts one request for generation. Raises Unavailable."""
        try:
            self.check_available()
        except Unavailable as refusal:
            if refusal.code is not None:
                self.metrics.rejected[refusal.code].inc()
            raise
        if self._live == 0:
            self._idle = anyio.Event()
        self._live += 1
        try:
            yield
        finally:
            self._live -= 1
            if self._live == 0:
                self._idle.set()

    async def drained(self, timeout: float) -> bool:
        """Waits up to ``timeout`` seconds for the last live request; False if some are left."""
        with anyio.move_on_after(timeout):
            while self._live:
                await self._idle.wait()
        return self._live == 0
