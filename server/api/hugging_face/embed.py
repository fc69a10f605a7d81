"""``/embed``, ``/embed_all`` and ``/embed_sparse`` of Text Embeddings Inference, and the ``/info`` of either server."""

from functools import partial
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

import stentor
from stentor.protocols.common.decoding import converted, decode
from stentor.protocols.common.encoding import encode
from stentor.protocols.hugging_face.objects import ServerInfo, TokenWeight
from stentor.protocols.hugging_face.request import (
    EmbedInputsRequest,
    TokenEmbedRequest,
    embed_decoder,
    token_embed_decoder,
)
from stentor.protocols.ipc.pooling import Pooled, PoolingTask
from stentor.protocols.pooling.contents import MAX_TEXTS
from stentor.protocols.pooling.embeddings import EmbeddingRequest

from ...config.model_registry import ServedModel
from ...generation.chat_model import ChatModel
from ...generation.error_fields import map_error_fields
from ...http.error_shapes import TEXT_EMBEDDINGS, TEXT_GENERATION
from ...overload.request_context import RequestContext
from ...pooling.encoding import FORMAT_BYTES, weights
from ...pooling.purposes import adapter_of
from ..common.described import Operation, Operations, generation
from ..common.endpoint import generation_route, json_response
from ..embeddings.requests import (
    EmbeddingServices,
    ResolvedRequest,
    pool_input,
    pooling_of,
    resolve_request,
    vectors,
)

OPERATIONS: Final[Operations] = {
    "/embed": generation(
        "Embed texts (Text Embeddings Inference)", list[list[float]], EmbedInputsRequest, errors=TEXT_EMBEDDINGS
    ),
    "/embed_all": generation(
        "Embed each token of texts (Text Embeddings Inference)",
        list[list[list[float]]],
        TokenEmbedRequest,
        errors=TEXT_EMBEDDINGS,
    ),
    "/embed_sparse": generation(
        "Weigh the tokens of texts (Text Embeddings Inference)",
        list[list[TokenWeight]],
        TokenEmbedRequest,
        errors=TEXT_EMBEDDINGS,
    ),
    "/info": Operation(
        "Describe the model (Text Generation Inference and Text Embeddings Inference)",
        ServerInfo,
        errors=TEXT_GENERATION,
    ),
}


RENAMED: Final = {"input": "inputs", "truncate_prompt_tokens": "truncate"}
"""Fields of embeddings, and what they are called here."""


class _Served(msgspec.Struct, frozen=True):
    chat: ChatModel
    services: EmbeddingServices


def routes(chat: ChatModel, services: EmbeddingServices) -> list[Route]:
    return [
        generation_route("/embed", services, embed, "embedding"),
        generation_route("/embed_all", services, embed_all, "embedding"),
        generation_route("/embed_sparse", services, embed_sparse, "embedding"),
        Route("/info", partial(info, _Served(chat, services)), methods=["GET"]),
    ]


async def embed(services: EmbeddingServices, request: Request, content: bytes, context: RequestContext) -> ASGIApp:
    body = decode(embed_decoder, content, services.limits)
    what = resolve_request(services, request, context, None, 0)
    with map_error_fields(RENAMED):
        made = embedding_request(services, body.fields())
        wanted = vectors(what.model, made.dimensions, made.normalize, body.prompt_name)
        found = await pool_input(services, what, made, wanted, made.purpose, FORMAT_BYTES["float"])
    writer = what.writer()
    written: list[Any] = [await writer.one(each, made, flat=True) for each in found]
    return writer.answer(written)


async def embed_all(services: EmbeddingServices, request: Request, content: bytes, context: RequestContext) -> ASGIApp:
    what, found, made = await _of_tokens(services, request, content, context, "token_embed")
    writer = what.writer()
    written: list[Any] = [await writer.one(each, made, flat=False) for each in found]
    return writer.answer(written)


async def embed_sparse(
    services: EmbeddingServices, request: Request, content: bytes, context: RequestContext
) -> ASGIApp:
    what, found, _ = await _of_tokens(services, request, content, context, "sparse")
    writer = what.writer()
    written: list[Any] = [
        await writer.written([encode([TokenWeight(int(token), value) for token, value in weights(each).items()])])
        for each in found
    ]
    return writer.answer(written)


async def _of_tokens(
    services: EmbeddingServices, request: Request, content: bytes, context: RequestContext, task: PoolingTask
) -> tuple[ResolvedRequest, list[Pooled], EmbeddingRequest]:
    body = decode(token_embed_decoder, content, services.limits)
    what = resolve_request(services, request, context, None, 0)
    with map_error_fields({**RENAMED, "task": "inputs"}):
        made = embedding_request(services, body.fields())
        wanted = pooling_of(what.model, task, None, False, True)
        wanted = msgspec.structs.replace(wanted, adapter=adapter_of(what.model.config, body.prompt_name))
        return what, await pool_input(services, what, made, wanted, made.purpose, FORMAT_BYTES["float"]), made


def embedding_request(services: EmbeddingServices, fields: dict[str, Any]) -> EmbeddingRequest:
    """Raises BadRequest in the words of embeddings."""
    made: EmbeddingRequest = converted(fields, EmbeddingRequest, "")
    made.check(services.limits)
    return made


async def info(served: _Served, _request: Request) -> Response:
    """Description of the chat model, if there is one."""
    chat = served.chat
    model = next(iter(chat.registry))
    chats = chat.registry.of_kind("chat") is not None
    length = chat.max_model_len if chats else _embedding_length(served.services)
    limits = chat.limits
    return json_response(
        ServerInfo(
            model_id=model.root or model.names[0],
            model_dtype=chat.facts.dtype,
            model_type=_type(served.services, model),
            max_concurrent_requests=chat.admission.overload.max_queued_requests,
            max_input_length=length,
            max_input_tokens=length,
            max_total_tokens=length,
            max_client_batch_size=MAX_TEXTS,
            max_best_of=1,
            max_stop_sequences=limits.max_stop_strings,
            version=stentor.__version__,
            router="stentor",
        )
    )


def _embedding_length(services: EmbeddingServices) -> int | None:
    model = services.model
    return None if model is None or model.client.ready is None else model.max_length


def _type(services: EmbeddingServices, model: ServedModel) -> dict[str, Any]:
    """Model type in Text Embeddings Inference, which separates embedding models from rerankers."""
    if model.kind != "embedding" or services.model is None:
        return {}
    if services.model.compares == "list":
        return {"reranker": {"id2label": {"0": "LABEL_0"}}}
    if services.model.config.score is None:
        return {"embedding": {"pooling": "+".join(services.model.config.modules.pooling)}}
    labels = services.model.config.score.labels
    kind = "reranker" if services.model.compares == "together" else "classifier"
    return {kind: {"id2label": {str(place): label for place, label in enumerate(labels)}}}
