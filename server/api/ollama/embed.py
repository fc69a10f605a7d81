"""``POST /api/embed`` and ``/api/embeddings``: vectors by Ollama's protocol."""

import time
from collections.abc import Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from stentor.protocols.common.decoding import converted, decode
from stentor.protocols.ipc.pooling import Pooled
from stentor.protocols.ollama.objects import OllamaEmbeddingsResponse, OllamaEmbedResponse
from stentor.protocols.ollama.request import (
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    embed_decoder,
    embeddings_decoder,
)
from stentor.protocols.pooling.embeddings import EmbeddingRequest

from ...generation.error_fields import map_error_fields
from ...http.error_shapes import OLLAMA
from ...overload.request_context import RequestContext
from ...pooling.encoding import FORMAT_BYTES, NumberWriter
from ..common.described import Operations, generation
from ..common.endpoint import generation_route, json_response
from ..embeddings.requests import EmbeddingServices, ResolvedRequest, pool_input, resolve_request, vectors
from .encoder import nanoseconds
from .translate import known_name

OPERATIONS: Final[Operations] = {
    "/api/embed": generation("Embed texts (Ollama's API)", OllamaEmbedResponse, OllamaEmbedRequest, errors=OLLAMA),
    "/api/embeddings": generation(
        "Embed one text (Ollama's API, older)", OllamaEmbeddingsResponse, OllamaEmbeddingsRequest, errors=OLLAMA
    ),
}


def routes(services: EmbeddingServices) -> list[Route]:
    return [
        generation_route("/api/embed", services, embed, "embedding"),
        generation_route("/api/embeddings", services, embeddings, "embedding"),
    ]


async def embed(services: EmbeddingServices, request: Request, content: bytes, context: RequestContext) -> ASGIApp:
    body = decode(embed_decoder, content, services.limits)
    what = resolve_request(services, request, context, known_name(services.registry, body.model), 0)
    if not body.input:
        return json_response(OllamaEmbedResponse(body.model, [], *_told(what, context)))
    with map_error_fields({"truncate_prompt_tokens": "truncate"}):
        found = await _pooled(services, what, body.input, body.dimensions, truncate=body.truncate, normalize=True)
    writer = what.writer()
    written: list[Any] = [await _vector(writer, each) for each in found]
    return writer.answer(OllamaEmbedResponse(body.model, written, *_told(what, context)))


async def embeddings(services: EmbeddingServices, request: Request, content: bytes, context: RequestContext) -> ASGIApp:
    body = decode(embeddings_decoder, content, services.limits)
    what = resolve_request(services, request, context, known_name(services.registry, body.model), 0)
    if not body.prompt:
        return json_response(OllamaEmbeddingsResponse([]))
    with map_error_fields({"input": "prompt"}):
        (found,) = await _pooled(services, what, body.prompt, None, truncate=True, normalize=None)
    writer = what.writer()
    return writer.answer(OllamaEmbeddingsResponse(await _vector(writer, found)))


async def _pooled(
    services: EmbeddingServices,
    what: ResolvedRequest,
    given: str | Sequence[str],
    dimensions: int | None,
    *,
    truncate: bool,
    normalize: bool | None,
) -> list[Pooled]:
    fields = {"input": given, "truncate_prompt_tokens": -1 if truncate else None}
    body: EmbeddingRequest = converted(fields, EmbeddingRequest, "")
    body.check(services.limits)
    wanted = vectors(what.model, dimensions, normalize)
    return await pool_input(services, what, body, wanted, number_bytes=FORMAT_BYTES["float"])


async def _vector(writer: NumberWriter, pooled: Pooled) -> Any:
    return await writer.one(pooled, EmbeddingRequest(), flat=True)


def _told(what: ResolvedRequest, context: RequestContext) -> tuple[int, int, int]:
    """Durations (the model is always loaded) and token counts."""
    return nanoseconds(time.monotonic() - context.arrival), 0, what.job.tokens
