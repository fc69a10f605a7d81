"""Servers over tiny models that pool, whole but for their processes: tokenizer, media process, engine and worker."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import httpx
import msgspec
from prometheus_client import CollectorRegistry

from stentor.engine.client.media import Media
from stentor.engine.client.request import EngineRequest
from stentor.engine.core.loop import engine_ready
from stentor.protocols.ipc.actors import EngineEvent, EngineReady, Stats
from stentor.server.app.media import MediaOpener, spec_in
from stentor.server.config.config import DEFAULTS, StoreConfig
from stentor.server.config.models import EmbeddingConfig
from stentor.server.media.collect import Accepted
from stentor.server.pooling.model import EmbeddingModel
from stentor.server.pooling.opening import open_embedding
from stentor.server.storage.opening import make_store
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.server.harness import in_memory
from stentor.tests.server.pooling.pooler import NAME, state_of


class RealPooler:
    """Takes the place of the engine client, over a scheduler and a worker in this process."""

    def __init__(self, folder: Path, **changes: object) -> None:
        fields = {"max_model_len": 256, "kv_cache_memory": 8 << 20, "is_pooling": True, **changes}
        self.engine = LocalEngine(model_config(folder, **fields))
        self.ready: EngineReady | None = engine_ready(self.engine.ready)
        self.failure = self.stalled = None
        self.engine_restarts = 0
        self.stats = Stats(0, 0, 0.0, 0, 0, 0, 0, 0)
        self.prompts: list[list[int]] = []
        self.media: list[list[Media]] = []
        """Of each prompt."""

    def submit(self, request: EngineRequest) -> "RealStream":
        media = [*request.media]
        self.prompts.append(request.prompt)
        self.media.append(media)
        rid = self.engine.submit(
            request.prompt,
            request.params,
            salt=request.salt,
            media=media,
            pooling=request.pooling,
            adapter=request.adapter,
        )
        return RealStream(self.engine, rid)


class RealStream:
    """Whoever asks first runs all that has been submitted."""

    def __init__(self, engine: LocalEngine, rid: int) -> None:
        self._engine, self._rid, self._read = engine, rid, False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[EngineEvent]:
        if self._read:
            raise StopAsyncIteration
        self._read = True
        self._engine.run(check=True)
        end = self._engine.outcomes[self._rid, 0].finished
        assert end is not None
        done = self._engine.prompts.get(self._rid)
        return [end] if done is None else [done, end]

    def routed_experts(self, index: int, drawn: int) -> bytes:
        raise ValueError("nobody has asked for experts")

    def abort(self, index: int = -1) -> None:
        self._read = True


class Served:
    """A model of a folder; its media process must be closed."""

    def __init__(self, folder: Path, **changes: object) -> None:
        self.pooler = RealPooler(folder, **changes)
        store = make_store(StoreConfig())
        spec = spec_in(folder)
        self.media = MediaOpener(DEFAULTS, store, CollectorRegistry()).open(folder, NAME, spec)
        served = EmbeddingConfig(str(folder), (NAME,))
        self.model: EmbeddingModel = open_embedding(
            served, self.pooler, folder, media=self.media, accepted=Accepted.of(spec, DEFAULTS.media)
        )
        self.state = state_of(self.model, store=store)

    def close(self) -> None:
        self.model.pool.close()
        self.media.close()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        async with in_memory(self.state) as client:
            yield client

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """The answer to a request that is served."""
        async with self.client() as client:
            response = await client.post(path, content=msgspec.json.encode(body))
        assert response.status_code == 200, response.text
        return response.json()
