"""SGLang's ``POST /encode``, and its ``/classify``, whose path is vLLM's too."""

import time
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from stentor.protocols.common.decoding import converted, decode
from stentor.protocols.pooling.embeddings import EmbeddingRequest
from stentor.protocols.pooling.pooling import ClassifyRequest, ClassifyResponse
from stentor.protocols.sglang.encode import (
    SglangEncodeMeta,
    SglangEncodeRequest,
    SglangVector,
    classify_fields_decoder,
    encode_decoder,
)

from ...generation.error_fields import map_error_fields
from ...http.error_shapes import OPENAI
from ...overload.request_context import RequestContext
from ...pooling.encoding import FORMAT_BYTES
from ..common.described import Operations, OtherProtocol, generation
from ..common.endpoint import generation_route
from ..embeddings.pooling import classify
from ..embeddings.requests import EmbeddingServices, pool_input, pooling_of, resolve_request

OPERATIONS: Final[Operations] = {
    "/encode": generation("Embed texts (SGLang)", SglangVector | list[SglangVector], SglangEncodeRequest),
    "/classify": generation(
        "Classify texts (vLLM, with `input`; SGLang, with `text` or `input_ids`)",
        ClassifyResponse,
        ClassifyRequest,
        other=OtherProtocol(SglangEncodeRequest, (SglangVector, list[SglangVector]), OPENAI),
    ),
}


def routes(services: EmbeddingServices) -> list[Route]:
    return [
        generation_route("/encode", services, partial(sglang_encode, task="embed"), "embedding"),
        generation_route("/classify", services, classify_of_either, "embedding"),
    ]


async def classify_of_either(
    services: EmbeddingServices, request: Request, content: bytes, context: RequestContext
) -> ASGIApp:
    """vLLM has the same path; the fields of the body show whose request it is."""
    if decode(classify_fields_decoder, content, services.limits).of_sglang:
        return await sglang_encode(services, request, content, context, task="classify")
    return await classify(services, request, content, context)


async def sglang_encode(
    services: EmbeddingServices, request: Request, content: bytes, context: RequestContext, *, task: Any
) -> ASGIApp:
    """Vectors with the ``task`` ``embed``; with ``classify`` scores as the model's head makes them."""
    body = decode(encode_decoder, content, services.limits)
    body.check()
    what = resolve_request(services, request, context, body.lora_path, 0, wanted_id=body.rid)
    with map_error_fields({"input": body.field, "task": "model"}):
        wanted = pooling_of(what.model, task, None, None, False if task == "classify" else None)
        given = body.input_ids if body.text is None else body.text
        made: EmbeddingRequest = converted({"input": given}, EmbeddingRequest, "")
        made.check(services.limits)
        found = await pool_input(services, what, made, wanted, None, FORMAT_BYTES["float"])
    writer, taken = what.writer(), time.monotonic() - context.arrival
    version = services.chat.admission.weight_version
    vectors: list[Any] = []
    for index, (pooled, tokens) in enumerate(zip(found, what.job.prompt_tokens, strict=True)):
        id = f"{what.request_id}_{index}" if body.several else what.request_id
        numbers = await writer.one(pooled, made, flat=True)
        vectors.append(SglangVector(numbers, SglangEncodeMeta(id, tokens, version, taken)))
    return writer.answer(vectors if body.several else vectors[0])
