"""``POST /embed`` of Text Embeddings Inference, and the ``/info`` of either server."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

import stentor
from stentor.protocols.common.decoding import converted, decode
from stentor.protocols.hugging_face.objects import ServerInfo
from stentor.protocols.hugging_face.request import EmbedInputsRequest, embed_decoder
from stentor.protocols.pooling.contents import MAX_TEXTS
from stentor.protocols.pooling.embeddings import EmbeddingRequest

from ...config.model_registry import ServedModel
from ...generation.chat_model import ChatModel
from ...generation.error_fields import map_error_fields
from ...http.error_shapes import TEXT_EMBEDDINGS, TEXT_GENERATION
from ...overload.request_context import RequestContext
from ...pooling.encoding import FORMAT_BYTES
from ..common.described import Operation, Operations, generation
from ..common.endpoint import generation_route, json_response
from ..embeddings.requests import EmbeddingServices, pool_input, resolve_request, vectors

OPERATIONS: Final[Operations] = {
    "/embed": generation(
        "Embed texts (Text Embeddings Inference)", list[list[float]], EmbedInputsRequest, errors=TEXT_EMBEDDINGS
    ),
    "/info": Operation(
        "Describe the model (Text Generation Inference and Text Embeddings Inference)",
        ServerInfo,
        errors=TEXT_GENERATION,
    ),
}


@dataclass(frozen=True)
class _Served:
    chat: ChatModel
    services: EmbeddingServices


def routes(chat: ChatModel, services: EmbeddingServices) -> list[Route]:
    return [
        generation_route("/embed", services, embed, "embedding"),
        Route("/info", partial(info, _Served(chat, services)), methods=["GET"]),
    ]


async def embed(services: EmbeddingServices, request: Request, content: bytes, context: RequestContext) -> ASGIApp:
    body = decode(embed_decoder, content, services.limits)
    what = resolve_request(services, request, context, None, 0)
    with map_error_fields({"input": "inputs", "truncate_prompt_tokens": "truncate"}):
        made: EmbeddingRequest = converted(body.fields(), EmbeddingRequest, "")
        made.check(services.limits)
        wanted = vectors(what.model, made.dimensions, made.normalize, body.prompt_name)
        found = await pool_input(services, what, made, wanted, made.purpose, FORMAT_BYTES["float"])
    writer = what.writer()
    written: list[Any] = [await writer.one(each, made, flat=True) for each in found]
    return writer.answer(written)


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
    if services.model.config.score is None:
        return {"embedding": {"pooling": "+".join(services.model.config.modules.pooling)}}
    labels = services.model.config.score.labels
    kind = "reranker" if services.model.compares == "together" else "classifier"
    return {kind: {"id2label": {str(place): label for place, label in enumerate(labels)}}}
