"""``POST /v1/embeddings``, and Cohere's ``/v2/embed``."""

from typing import Any, Final

from msgspec import UNSET
from msgspec.structs import replace
from starlette.requests import Request
from starlette.routing import Route

from stentor.protocols.common.decoding import decode
from stentor.protocols.common.encoding import encode
from stentor.protocols.common.errors import wrong
from stentor.protocols.ipc.pooling import Pooled
from stentor.protocols.pooling import cohere
from stentor.protocols.pooling.common import PoolingFields, Side
from stentor.protocols.pooling.contents import plain_text
from stentor.protocols.pooling.embeddings import Embedding, EmbeddingRequest, EmbeddingResponse, decoder

from ...http.error_shapes import COHERE
from ...http.whole_answer import WholeAnswer
from ...overload.request_context import RequestContext
from ...pooling.encoding import FORMAT_BYTES, NumberWriter, floats, integers
from ...pooling.purposes import prompt_of
from ...pooling.reading import LengthLimit
from ..common.described import Operations, generation
from ..common.endpoint import generation_route
from .requests import (
    EmbeddingServices,
    binary_answer,
    now,
    pool_contents,
    pool_input,
    pool_parts,
    pooling_of,
    reading_of,
    resolve_request,
    room_of,
    vectors,
)

OPERATIONS: Final[Operations] = {
    "/v1/embeddings": generation("Embed texts or conversations", EmbeddingResponse, EmbeddingRequest),
    "/v2/embed": generation("Embed texts, in Cohere's shape", cohere.EmbedResponse, cohere.EmbedRequest, errors=COHERE),
}

_SIDES: Final[dict[str, Side | None]] = {"NONE": None, "START": "left", "END": "right"}

_INTEGER_BYTES: Final = 5
"""Bytes of one number of Cohere's integer types."""


def routes(services: EmbeddingServices) -> list[Route]:
    return [
        generation_route("/v1/embeddings", services, embeddings, "embedding"),
        generation_route("/v2/embed", services, cohere_embed, "embedding"),
    ]


async def embeddings(
    services: EmbeddingServices, request: Request, content: bytes, context: RequestContext
) -> WholeAnswer:
    body = decode(decoder, content, services.limits)
    body.check(services.limits)
    what = resolve_request(services, request, context, body.model, body.priority, body.cache_salt, body.request_id)
    per_token = what.model.per_token
    if per_token:
        _check_matrices(body)
        wanted = pooling_of(what.model, "token_embed", body.dimensions, body.normalizes, None)
    else:
        wanted = vectors(what.model, body.dimensions, body.normalizes, body.purpose and body.purpose[0])
    pooled = pool_parts if body.late_chunking else pool_input
    found = await pooled(services, what, body, wanted, body.purpose, FORMAT_BYTES[body.encoding_format])
    if body.encoding_format in ("bytes", "bytes_only"):
        return await binary_answer(what, found, body, flat=True)
    writer = what.writer()
    data = [Embedding(index, await writer.one(each, body, flat=not per_token)) for index, each in enumerate(found)]
    return writer.answer(EmbeddingResponse(what.id("embd"), now(), data, what.name, what.usage))


def _check_matrices(body: EmbeddingRequest) -> None:
    """Raises BadRequest for what one vector of a text has, and the vectors of its tokens have not."""
    if body.encoding_format != "float":
        field = "encoding_format" if body.embedding_type is None else "embedding_type"
        why = "must be `float`, or use /pooling: the model makes a vector for each token"
        raise wrong(field, why, "unsupported")
    if body.late_chunking:
        raise wrong("late_chunking", "needs a model that makes one vector of a text; leave it out", "unsupported")


async def cohere_embed(
    services: EmbeddingServices, request: Request, content: bytes, context: RequestContext
) -> WholeAnswer:
    body = decode(cohere.decoder, content, services.limits)
    contents, field = body.contents(services.limits)
    what = resolve_request(services, request, context, body.model, body.priority)
    model = what.model
    purpose = None if body.input_type == "image" else body.input_type  # pictures have no purpose
    wanted = vectors(model, body.output_dimension, None, purpose, "output_dimension")
    prompt = prompt_of(model.config, purpose, "input_type")
    most = room_of(services, model, PoolingFields()).most
    room = LengthLimit(min(body.max_tokens or most, most), _SIDES[body.truncate], "`truncate` to `END`", "max_tokens")
    reading = replace(reading_of(services, what, PoolingFields()), room=room)
    kinds = body.embedding_types or ["float"]
    number_bytes = sum(FORMAT_BYTES.get(kind, _INTEGER_BYTES) for kind in kinds)
    found = await pool_contents(what, reading, contents, field, wanted, prompt, number_bytes)
    writer = what.writer()
    made: dict[str, object] = {}
    for kind in kinds:
        name = "floats" if kind == "float" else kind
        made[name] = [await _in_kind(writer, each, kind) for each in found]
    texts = [text for each in contents if (text := plain_text(each)) is not None]
    pictures = sum(part["type"] == "image_url" for each in contents if isinstance(each, list) for part in each)
    meta = cohere.EmbedMeta(cohere.BilledUnits(what.job.tokens, pictures or UNSET))
    by_type = cohere.EmbeddingsByType(**made)  # type: ignore[arg-type]
    return writer.answer(cohere.EmbedResponse(what.id("embd"), by_type, texts, meta))


async def _in_kind(writer: NumberWriter, pooled: Pooled, kind: str) -> Any:
    if kind == "base64":
        return await writer.base64(pooled.data)
    return await writer.written([encode(floats(pooled) if kind == "float" else integers(pooled, kind))])
