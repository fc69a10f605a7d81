"""``POST /embedding`` and ``/embeddings`` of llama.cpp's server."""

from typing import Any, Final

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from stentor.protocols.common.decoding import converted, decode
from stentor.protocols.llama_cpp.objects import LlamaEmbedding
from stentor.protocols.llama_cpp.request import LlamaEmbeddingRequest, embedding_decoder
from stentor.protocols.pooling.embeddings import EmbeddingRequest

from ...generation.error_fields import map_error_fields
from ...http.error_shapes import LLAMA_CPP
from ...overload.request_context import RequestContext
from ...pooling.encoding import FORMAT_BYTES
from ..common.described import Operations, generation
from ..common.endpoint import generation_route
from ..embeddings.requests import EmbeddingServices, pool_input, resolve_request, vectors
from .prompts import joined_prompts

_PATHS: Final = ("/embedding", "/embeddings")

OPERATIONS: Final[Operations] = dict.fromkeys(
    _PATHS,
    generation("Embed texts (llama.cpp's server)", list[LlamaEmbedding], LlamaEmbeddingRequest, errors=LLAMA_CPP),
)


def routes(services: EmbeddingServices) -> list[Route]:
    return [generation_route(path, services, embed, "embedding") for path in _PATHS]


async def embed(services: EmbeddingServices, request: Request, content: bytes, context: RequestContext) -> ASGIApp:
    body = decode(embedding_decoder, content, services.limits)
    body.check()
    what = resolve_request(services, request, context, body.model, 0)
    with map_error_fields({"input": body.field}):
        given = await joined_prompts(what.model.pool, body.prompts, body.field, services.limits)
        fields = {"input": given, "normalize": body.embd_normalize == 2}
        made: EmbeddingRequest = converted(fields, EmbeddingRequest, "")
        made.check(services.limits)
        wanted = vectors(what.model, None, made.normalize)
        found = await pool_input(services, what, made, wanted, None, FORMAT_BYTES["float"])
    writer = what.writer()
    written: list[Any] = [
        LlamaEmbedding(index, [await writer.one(each, made, flat=True)]) for index, each in enumerate(found)
    ]
    return writer.answer(written)
