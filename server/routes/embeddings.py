"""``POST /v1/embeddings``, and Cohere's ``/v2/embed``."""

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stentor.protocols.openai.decoding import decode
from stentor.protocols.openai.embeddings import Embedding, EmbeddingRequest, EmbeddingResponse, decoder
from stentor.protocols.pooling_api import cohere
from stentor.protocols.pooling_api.common import PoolingFields, Side

from ..embedding.asking import asked, binary_answer, new_id, read_input, room_of, vectors
from ..embedding.encoding import base64, floats, integers, off_the_loop, one, raw
from ..embedding.purposes import prompt_of
from ..embedding.reading import Room, read_texts
from ..overload.ticket import Ticket
from ..state import ServerState
from .described import JSON, Operation, Operations
from .endpoint import GenerationEndpoint

OPERATIONS: Final[Operations] = {
    "/v1/embeddings": Operation("Vectors of texts", EmbeddingResponse, EmbeddingRequest, finds=True, generates=True),
    "/v2/embed": Operation(
        "Vectors of texts, in Cohere's shape", cohere.EmbedResponse, cohere.EmbedRequest, finds=True, generates=True
    ),
}

_SIDES: Final[dict[str, Side | None]] = {"NONE": None, "START": "left", "END": "right"}

_encode: Final = msgspec.json.Encoder().encode


def routes(state: ServerState) -> list[Route]:
    return [
        Route("/v1/embeddings", GenerationEndpoint(state, embeddings, "embedding"), methods=["POST"]),
        Route("/v2/embed", GenerationEndpoint(state, cohere_embed, "embedding"), methods=["POST"]),
    ]


async def embeddings(state: ServerState, request: Request, content: bytes, ticket: Ticket) -> Response:
    body = decode(decoder, content, state.limits)
    body.check(state.limits)
    what = asked(state, request, ticket, body.model, body.priority, body.cache_salt)
    wanted = vectors(what.model, body.dimensions, body.normalizes, body.purpose and body.purpose[0])
    prompts = await read_input(state, what.model, body, body.purpose)
    found = await what.job.run(prompts, wanted)
    if body.encoding_format in ("bytes", "bytes_only"):
        return await binary_answer(what, found, body, flat=True)

    def write() -> bytes:
        format, type, order = body.encoding_format, body.embed_dtype, body.endianness
        data = [Embedding(index, one(each, format, type, order, flat=True)) for index, each in enumerate(found)]
        return _encode(EmbeddingResponse(data, what.name, what.usage))

    return Response(await off_the_loop(found, write), media_type=JSON)


async def cohere_embed(state: ServerState, request: Request, content: bytes, ticket: Ticket) -> Response:
    body = decode(cohere.decoder, content, state.limits)
    texts, field = body.all_texts(state.limits)
    what = asked(state, request, ticket, body.model, body.priority)
    model = what.model
    wanted = vectors(model, body.output_dimension, None, body.input_type, "output_dimension")
    prompt = prompt_of(model.config, body.input_type, "input_type")
    most = room_of(state, model, PoolingFields()).most
    room = Room(min(body.max_tokens or most, most), _SIDES[body.truncate], "`truncate` to `END`", "max_tokens")
    prompts = await read_texts(model, texts, room, field, prompt=prompt)
    found = await what.job.run(prompts, wanted, field)
    kinds = body.embedding_types or ["float"]

    def write() -> bytes:
        made: dict[str, object] = {}
        for kind in kinds:
            if kind == "float":
                made["floats"] = [raw(floats(each)) for each in found]
            elif kind == "base64":
                made["base64"] = [base64(each.data) for each in found]
            else:
                made[kind] = [raw(each) for each in integers(found, kind)]
        meta = cohere.EmbedMeta(cohere.BilledUnits(what.job.tokens))
        by_type = cohere.EmbeddingsByType(**made)  # type: ignore[arg-type]
        return _encode(cohere.EmbedResponse(new_id("embd"), by_type, texts, meta))

    return Response(await off_the_loop(found, write), media_type=JSON)
