"""``GET /openapi.json``: what all the routes take and give."""

from functools import partial
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..api.anthropic import route as messages
from ..api.audio import speech, transcriptions
from ..api.chat import route as chat
from ..api.common.described import JSON, Operation, Operations
from ..api.completions import route as completions
from ..api.embeddings import embeddings, pooling, scoring
from ..api.files_and_batches import batches, files
from ..api.ops import models, operations, page, tokens
from ..api.realtime import route as realtime
from ..api.responses import conversations
from ..api.responses import route as responses
from ..middleware.access_control import AccessControl
from .openapi_schema import Document

OPERATIONS: Final[Operations] = {
    "/openapi.json": Operation("This document", dict[str, Any]),
}


def routes(access: AccessControl) -> list[Route]:
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
    return [Route("/openapi.json", partial(openapi, access, document), methods=["GET"])]


async def openapi(access: AccessControl, document: Document, request: Request) -> Response:
    app = request.app
    assert isinstance(app, Starlette)
    return Response(document.render(app.routes, access), media_type=JSON)
