"""``POST /v1/moderations``: the labels of a classifier for texts."""

import re
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stentor.protocols.common.decoding import decode
from stentor.protocols.ipc.pooling import Pooled
from stentor.protocols.pooling.moderation import ModerationRequest, ModerationResponse, ModerationResult, decoder

from ...overload.request_context import RequestContext
from ...pooling.encoding import floats
from ..common.described import Operations, generation
from ..common.endpoint import generation_route, json_response
from .pooling import score_head_of
from .requests import EmbeddingServices, pool_input, pooling_of, resolve_request

OPERATIONS: Final[Operations] = {
    "/v1/moderations": generation(
        "Say which of a classification model's labels texts fall under", ModerationResponse, ModerationRequest
    ),
}
_FLAGGED: Final = 0.5
"""The probability from which on a text falls under a label."""
_NOT: Final = ("toxic", "hate", "hateful", "offensive", "spam", "nsfw")
_HARMLESS: Final = frozenset(
    (
        *("ok", "safe", "benign", "normal", "neutral", "clean", "acceptable", "harmless", "none", "no", "other"),
        *(f"non{bad}" for bad in _NOT),
        *(f"not{bad}" for bad in _NOT),
    )
)
"""Labels for harmless text, letters only."""


def routes(services: EmbeddingServices) -> list[Route]:
    return [generation_route("/v1/moderations", services, moderate, "embedding")]


async def moderate(services: EmbeddingServices, request: Request, content: bytes, context: RequestContext) -> Response:
    body = decode(decoder, content, services.limits)
    fields = body.fields
    fields.check(services.limits)
    what = resolve_request(services, request, context, body.model, 0)
    labels = score_head_of(what.model).labels
    found = await pool_input(services, what, fields, pooling_of(what.model, "classify", None, None, True))
    return json_response(ModerationResponse(what.id("modr"), what.name, [_result(each, labels) for each in found]))


def _result(pooled: Pooled, labels: tuple[str, ...]) -> ModerationResult:
    """Labels for harmless text are no categories, unless there are no others."""
    scores = floats(pooled)
    named = {labels[place] if place < len(labels) else f"LABEL_{place}": score for place, score in enumerate(scores)}
    shown = {name: score for name, score in named.items() if not _is_harmless(name)} or named
    categories = {name: score >= _FLAGGED for name, score in shown.items()}
    return ModerationResult(any(categories.values()), categories, shown, {name: ["text"] for name in shown})


def _is_harmless(label: str) -> bool:
    return re.sub(r"[^a-z]", "", label.lower()) in _HARMLESS
