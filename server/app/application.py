"""The ASGI application over one :class:`.state.ServerState`; nothing of it is global."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from stentor.engine.client.errors import EngineUnavailable
from stentor.protocols.common.errors import BadRequest, ErrorBody

from ..api.anthropic import route as messages
from ..api.audio import speech, transcriptions
from ..api.chat import batch as chat_batch
from ..api.chat import route as chat
from ..api.chat import stored as stored_chats
from ..api.cohere import route as cohere
from ..api.common.described import Operations
from ..api.completions import route as completions
from ..api.embeddings import embeddings, moderations, pooling, scoring
from ..api.files_and_batches import batches, files, message_batches, uploads
from ..api.hugging_face import embed, generate, predict
from ..api.llama_cpp import embed as llama_cpp_embed
from ..api.llama_cpp import route as llama_cpp
from ..api.ollama import embed as ollama_embed
from ..api.ollama import models as ollama_models
from ..api.ollama import route as ollama
from ..api.ops import (
    adapters,
    control,
    models,
    operations,
    page,
    server_info,
    sglang,
    stats,
    tokens,
    weights,
)
from ..api.realtime import route as realtime
from ..api.realtime.connections import calls
from ..api.responses import conversations, decisions
from ..api.responses import route as responses
from ..api.sagemaker import route as sagemaker
from ..api.sglang import encode as sglang_encode
from ..api.vllm import generate as tokens_generate
from ..api.vllm import label_scores, render, systemone
from ..common.errors import ClientDisconnected, ServerError
from ..http.error_responses import can_respond, handle_disconnect, handle_error, handle_http_exception, respond
from ..http.path_aliases import PathAliasMiddleware
from ..http.root_path import RootPathMiddleware
from ..middleware.auth import RequireKey
from ..middleware.origins import Origins
from ..middleware.request_id import RequestIdMiddleware
from . import openapi
from .state import ServerState

_FAMILIES: Final[Sequence[tuple[Operations, Callable[[ServerState], Sequence[BaseRoute]]]]] = (
    (chat.OPERATIONS, lambda state: chat.routes(state.for_chat)),
    (chat_batch.OPERATIONS, lambda state: chat_batch.routes(state.chat)),
    # before the stored chat completions, whose ids may have any name
    (render.OPERATIONS, lambda state: render.routes(state.for_responses)),
    (llama_cpp.OPERATIONS, lambda state: llama_cpp.routes(state.chat, state.control)),
    (stored_chats.OPERATIONS, lambda state: stored_chats.routes(state.for_store)),
    (completions.OPERATIONS, lambda state: completions.routes(state.chat)),
    (tokens_generate.OPERATIONS, lambda state: tokens_generate.routes(state.chat)),
    (label_scores.OPERATIONS, lambda state: label_scores.routes(state.chat)),
    (systemone.OPERATIONS, lambda state: systemone.routes(state.chat)),
    (messages.OPERATIONS, lambda state: messages.routes(state.chat)),
    (responses.OPERATIONS, lambda state: responses.routes(state.for_responses)),
    (decisions.OPERATIONS, lambda state: decisions.routes(state.chat)),
    (realtime.OPERATIONS, lambda state: realtime.routes(state.for_realtime)),
    (conversations.OPERATIONS, lambda state: conversations.routes(state.for_store)),
    (models.OPERATIONS, lambda state: models.routes(state.chat, state.auxiliary.embedding)),
    (tokens.OPERATIONS, lambda state: tokens.routes(state.chat, state.auxiliary.embedding)),
    (operations.OPERATIONS, lambda state: operations.routes(state.admission, state.metrics)),
    (stats.OPERATIONS, lambda state: stats.routes(state.metrics, state.auxiliary.speech, state.access.keys)),
    (
        control.OPERATIONS,
        lambda state: control.routes(
            state.control,
            state.admission,
            state.metrics,
            state.access.keys,
            state.media_processors,
            profiles=bool(state.config.engine.worker.profiler_folder),
        ),
    ),
    (weights.OPERATIONS, lambda state: weights.routes(state.weights, state.access.keys)),
    (sglang.OPERATIONS, lambda state: sglang.routes(state.weights, state.chat, state.access.keys)),
    (server_info.OPERATIONS, lambda state: server_info.routes(state.config, state.chat, state.access.keys)),
    (adapters.OPERATIONS, lambda state: adapters.routes(state.chat, state.access.keys)),
    (files.OPERATIONS, lambda state: files.routes(state.for_store)),
    (batches.OPERATIONS, lambda state: batches.routes(state.for_store)),
    (uploads.OPERATIONS, lambda state: uploads.routes(state.for_store)),
    (message_batches.OPERATIONS, lambda state: message_batches.routes(state.for_store)),
    (transcriptions.OPERATIONS, lambda state: transcriptions.routes(state.for_transcription)),
    (speech.OPERATIONS, lambda state: speech.routes(state.for_speech)),
    (embeddings.OPERATIONS, lambda state: embeddings.routes(state.for_embeddings)),
    (pooling.OPERATIONS, lambda state: pooling.routes(state.for_embeddings)),
    (sglang_encode.OPERATIONS, lambda state: sglang_encode.routes(state.for_embeddings)),
    (scoring.OPERATIONS, lambda state: scoring.routes(state.for_embeddings)),
    (llama_cpp_embed.OPERATIONS, lambda state: llama_cpp_embed.routes(state.for_embeddings)),
    (generate.OPERATIONS, lambda state: generate.routes(state.chat)),
    (embed.OPERATIONS, lambda state: embed.routes(state.chat, state.for_embeddings)),
    (predict.OPERATIONS, lambda state: predict.routes(state.for_embeddings)),
    (sagemaker.OPERATIONS, lambda state: sagemaker.routes(state.for_chat, state.for_embeddings)),
    (moderations.OPERATIONS, lambda state: moderations.routes(state.for_embeddings)),
    (cohere.OPERATIONS, lambda state: cohere.routes(state.chat)),
    (ollama.OPERATIONS, lambda state: ollama.routes(state.chat)),
    (ollama_embed.OPERATIONS, lambda state: ollama_embed.routes(state.for_embeddings)),
    (ollama_models.OPERATIONS, lambda state: ollama_models.routes(state.chat, state.auxiliary.embedding)),
    (page.OPERATIONS, lambda state: page.routes(state.access.root_path, webrtc=calls.available())),
)
"""The descriptions of each family's endpoints, and what makes these over the parts of the server that it uses."""
OPERATIONS: Final[Operations] = {path: operation for table, _ in _FAMILIES for path, operation in table.items()}
"""Every endpoint but the document of them."""


def create_app(state: ServerState) -> Starlette:
    """Every endpoint, behind ``state.access``."""
    access = state.access
    middleware = [
        Middleware(PathAliasMiddleware),
        Middleware(RequestIdMiddleware, observer=state.observer),
        Middleware(RequireKey, keys=access.keys, origins=access.origins, hosts=access.hosts, secrets=access.secrets),
    ]
    if access.origins:
        # outermost, so that a page can read errors too; preflights come without a key
        middleware.insert(0, Middleware(CORSMiddleware, **_cors(access.origins)))
    if access.root_path:
        middleware.insert(0, Middleware(RootPathMiddleware, prefix=access.root_path))
    return _starlette(state, middleware)


def _cors(origins: Origins) -> dict[str, Any]:
    return {
        "allow_origins": origins.allowed,
        "allow_methods": ("GET", "POST", "DELETE"),
        "allow_headers": ("*",),
        # cookies and client certificates are for origins that are named
        "allow_credentials": not origins.any,
        "allow_private_network": True,
        "expose_headers": ("x-request-id", "request-id", "retry-after", "location", "x-weight-version"),
    }


async def _no_route(otherwise: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket" and can_respond(scope):
        message = f"There is no WebSocket at {scope['path'][:200]}."
        body = ErrorBody(message, "invalid_request_error", None, "unknown_url")
        await respond(scope, 404, body)(scope, receive, send)
    else:
        await otherwise(scope, receive, send)


def create_answering_app(state: ServerState) -> Starlette:
    """Every endpoint, for requests made inside the process, whose callers have been authenticated before."""
    return _starlette(state, [Middleware(RequestIdMiddleware, observer=state.observer)])


def _starlette(state: ServerState, middleware: list[Middleware]) -> Starlette:
    routes = [route for _, make in _FAMILIES for route in make(state)]
    app = Starlette(
        routes=[*routes, *openapi.routes(state.access, OPERATIONS)],
        middleware=middleware,
        exception_handlers={
            BadRequest: handle_error,
            ServerError: handle_error,
            EngineUnavailable: handle_error,
            HTTPException: handle_http_exception,
            ClientDisconnect: handle_disconnect,
            ClientDisconnected: handle_disconnect,
        },
    )
    app.router.default = partial(_no_route, app.router.default)
    # A redirect would drop the body of a POST and the status of a wrong path.
    app.router.redirect_slashes = False
    return app
