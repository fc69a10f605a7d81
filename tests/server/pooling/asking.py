"""A request to the app over one made-up model, and heads for such."""

from typing import Any, Final

import httpx

from stentor.engine.model_config.encoders.pooling import SparseHead, TokenVectors
from stentor.tests.server.harness import in_memory
from stentor.tests.server.pooling.pooler import DIMENSIONS, FakePooler, config, model_of, state_of

SPARSE: Final = SparseHead("a", "b", "c", "gelu", 1e-12)
COLBERT: Final = TokenVectors(DIMENSIONS, bias=False)


async def post(engine: FakePooler, path: str, body: dict[str, Any], made: Any = None, **fields: Any) -> httpx.Response:
    model = model_of(engine, made or config(), **fields)
    async with in_memory(state_of(model)) as client:
        return await client.post(path, json=body)
