"""Other paths of endpoints: those that llama.cpp's server has without ``/v1``, its own names, SGLang's, and vLLM's."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from .root_path import route_path

ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "/chat/completions": "/v1/chat/completions",
        "/chat/completions/input_tokens": "/v1/chat/completions/input_tokens",
        "/models": "/v1/models",
        "/responses": "/v1/responses",
        "/responses/input_tokens": "/v1/responses/input_tokens",
        "/audio/transcriptions": "/v1/audio/transcriptions",
        "/cohere/v2/chat": "/v2/chat",
        "/reranking": "/rerank",
        "/v1/reranking": "/v1/rerank",
        "/v1/health": "/health",
        "/health_generate": "/health",
        "/v1/tokenize": "/tokenize",
        "/v1/detokenize": "/detokenize",
        "/inference/v1/abort_requests": "/abort_requests",
    }
)
"""Whole paths. ``/completions`` and ``/embeddings`` are no aliases: in llama.cpp they have shapes of their own."""


class PathAliasMiddleware:
    """Renames the path before anything else reads it, so that keys, errors, figures and logs know one name."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan" and (path := ALIASES.get(route_path(scope))) is not None:
            scope["path"] = scope.get("root_path", "") + path
        await self.app(scope, receive, send)
