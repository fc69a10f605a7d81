"""``GET /openapi.json``: what all the routes take and give."""

from functools import partial
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..app.state import ServerState
from . import (
    batches,
    chat,
    completions,
    conversations,
    embeddings,
    files,
    messages,
    models,
    operations,
    page,
    pooling,
    realtime,
    responses,
    scoring,
    speech,
    tokens,
    transcriptions,
)
from .described import JSON, Operation, Operations
from .openapi_schema import Document

OPERATIONS: Final[Operations] = {
    "/openapi.json": Operation("This document", dict[str, Any]),
}


def routes(state: ServerState) -> list[Route]:
    families = (
        *(chat, completions, conversations, messages, models, tokens, operations, responses, files, batches),
        realtime,
        transcriptions,
        speech,
        embeddings,
        pooling,
        scoring,
        page,
    )
    described = [*(family.OPERATIONS for family in families), OPERATIONS]
    document = Document({path: operation for table in described for path, operation in table.items()})
    return [Route("/openapi.json", partial(openapi, state, document), methods=["GET"])]


async def openapi(state: ServerState, document: Document, request: Request) -> Response:
    app = request.app
    assert isinstance(app, Starlette)
    return Response(document.render(app.routes, state.door), media_type=JSON)
