"""``POST /invocations``: SageMaker's requests, in the shape of any endpoint."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from stentor.protocols.common.decoding import decode
from stentor.protocols.hugging_face.request import InvocationRequest, invocation_decoder

from ...config.model_registry import ModelRole
from ...generation.chat_model import ChatModel
from ...overload.request_context import RequestContext
from ...state.admission_control import AdmissionControl
from ..chat.route import ChatServices, chat_completions
from ..common.described import Operations, generation
from ..common.endpoint import generation_route
from ..completions.route import completions
from ..embeddings.embeddings import embeddings
from ..embeddings.pooling import classify, pooling
from ..embeddings.requests import EmbeddingServices
from ..embeddings.scoring import rerank, score
from ..hugging_face.embed import embed
from ..hugging_face.generate import generate

OPERATIONS: Final[Operations] = {
    "/invocations": generation(
        "Answer what another endpoint would, which the fields of the request show (SageMaker)",
        dict[str, Any] | list[Any],
        InvocationRequest,
        streams=True,
    )
}
_OfText = Callable[[ChatModel, Request, bytes, RequestContext], Awaitable[ASGIApp]]
_OfVectors = Callable[[EmbeddingServices, Request, bytes, RequestContext], Awaitable[ASGIApp]]
_TEXT: Final[Mapping[str, _OfText]] = {"prompt": completions, "inputs": generate}
_VECTORS: Final[Mapping[str, _OfVectors]] = {
    "input": embeddings,
    "inputs": embed,
    "query": rerank,
    "queries": score,
}
"""By the field that identifies the request. ``inputs`` are embedded if there is no chat model."""

_CLASSES: Final[Mapping[str, _OfVectors]] = {"classify": classify, "token_classify": pooling}
"""What ``input`` asks of a classifier, by its task."""


class _Served(msgspec.Struct, frozen=True):
    chat: ChatServices
    embedding: EmbeddingServices

    @property
    def admission(self) -> AdmissionControl:
        return self.chat.admission


def routes(services: ChatServices, embedding: EmbeddingServices) -> list[Route]:
    kind: ModelRole = "chat" if services.chat.registry.of_kind("chat") is not None else "embedding"
    return [generation_route("/invocations", _Served(services, embedding), invoke, kind)]


async def invoke(served: _Served, request: Request, content: bytes, context: RequestContext) -> ASGIApp:
    chat = served.chat.chat
    kind = decode(invocation_decoder, content, chat.limits).kind
    if kind == "messages":
        return await chat_completions(served.chat, request, content, context)
    if kind in _TEXT and (kind not in _VECTORS or chat.registry.of_kind("chat") is not None):
        return await _TEXT[kind](chat, request, content, context)
    answer = _VECTORS[kind]
    if kind == "input" and (model := served.embedding.model) is not None:
        answer = _CLASSES.get(model.main_task, answer)
    return await answer(served.embedding, request, content, context)
