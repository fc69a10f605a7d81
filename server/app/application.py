"""The ASGI application over one :class:`.state.ServerState`; nothing of it is global."""

from collections.abc import Sequence
from functools import partial
from typing import Any

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


def _families(state: ServerState) -> list[tuple[Operations, Sequence[BaseRoute]]]:
    """The endpoints of each family with their descriptions, over the parts of the server that it uses."""
    return [
        (chat.OPERATIONS, chat.routes(state.for_chat)),
        (chat_batch.OPERATIONS, chat_batch.routes(state.chat)),
        # before the stored chat completions, whose ids may have any name
        (render.OPERATIONS, render.routes(state.for_responses)),
        (llama_cpp.OPERATIONS, llama_cpp.routes(state.chat, state.control)),
        (stored_chats.OPERATIONS, stored_chats.routes(state.for_store)),
        (completions.OPERATIONS, completions.routes(state.chat)),
        (tokens_generate.OPERATIONS, tokens_generate.routes(state.chat)),
        (label_scores.OPERATIONS, label_scores.routes(state.chat)),
        (systemone.OPERATIONS, systemone.routes(state.chat)),
        (messages.OPERATIONS, messages.routes(state.chat)),
        (responses.OPERATIONS, responses.routes(state.for_responses)),
        (decisions.OPERATIONS, decisions.routes(state.chat)),
        (realtime.OPERATIONS, realtime.routes(state.for_realtime)),
        (conversations.OPERATIONS, conversations.routes(state.for_store)),
        (models.OPERATIONS, models.routes(state.chat, state.auxiliary.embedding)),
        (tokens.OPERATIONS, tokens.routes(state.chat, state.auxiliary.embedding)),
        (operations.OPERATIONS, operations.routes(state.admission, state.metrics)),
        (stats.OPERATIONS, stats.routes(state.metrics, state.auxiliary.speech, state.access.keys)),
        (
            control.OPERATIONS,
            control.routes(
                state.control,
                state.admission,
                state.metrics,
                state.access.keys,
                state.media_processors,
                profiles=bool(state.config.engine.worker.profiler_folder),
            ),
        ),
        (weights.OPERATIONS, weights.routes(state.weights, state.access.keys)),
        (sglang.OPERATIONS, sglang.routes(state.weights, state.chat, state.access.keys)),
        (server_info.OPERATIONS, server_info.routes(state.config, state.chat, state.access.keys)),
        (adapters.OPERATIONS, adapters.routes(state.chat, state.access.keys)),
        (files.OPERATIONS, files.routes(state.for_store)),
        (batches.OPERATIONS, batches.routes(state.for_store)),
        (uploads.OPERATIONS, uploads.routes(state.for_store)),
        (message_batches.OPERATIONS, message_batches.routes(state.for_store)),
        (transcriptions.OPERATIONS, transcriptions.routes(state.for_transcription)),
        (speech.OPERATIONS, speech.routes(state.for_speech)),
        (embeddings.OPERATIONS, embeddings.routes(state.for_embeddings)),
        (pooling.OPERATIONS, pooling.routes(state.for_embeddings)),
        (sglang_encode.OPERATIONS, sglang_encode.routes(state.for_embeddings)),
        (scoring.OPERATIONS, scoring.routes(state.for_embeddings)),
        (llama_cpp_embed.OPERATIONS, llama_cpp_embed.routes(state.for_embeddings)),
        (generate.OPERATIONS, generate.routes(state.chat)),
        (embed.OPERATIONS, embed.routes(state.chat, state.for_embeddings)),
        (predict.OPERATIONS, predict.routes(state.for_embeddings)),
        (sagemaker.OPERATIONS, sagemaker.routes(state.for_chat, state.for_embeddings)),
        (moderations.OPERATIONS, moderations.routes(state.for_embeddings)),
        (cohere.OPERATIONS, cohere.routes(state.chat)),
        (ollama.OPERATIONS, ollama.routes(state.chat)),
        (ollama_embed.OPERATIONS, ollama_embed.routes(state.for_embeddings)),
        (ollama_models.OPERATIONS, ollama_models.routes(state.chat, state.auxiliary.embedding)),
        (page.OPERATIONS, page.routes(state.access.root_path, webrtc=calls.available())),
    ]


def _starlette(state: ServerState, middleware: list[Middleware]) -> Starlette:
    families = _families(state)
    routes = [route for _, of_family in families for route in of_family]
    described = {path: operation for table, _ in families for path, operation in table.items()}
    app = Starlette(
        routes=[*routes, *openapi.routes(state.access, described)],
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
