"""``POST /score`` and ``/rerank``, under all the paths by which clients look for them."""

from collections.abc import Sequence
from typing import Final

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stentor.protocols.common.decoding import decode
from stentor.protocols.openai.label_scores import (
    LabelScoreResponse,
    LabelUsage,
    label_score_decoder,
    score_kind_decoder,
)
from stentor.protocols.pooling.contents import Content, plain_text
from stentor.protocols.pooling.scoring import (
    Document,
    Ranked,
    RankedText,
    RerankRequest,
    RerankResponse,
    Score,
    ScoreRequest,
    ScoreResponse,
    ScoringFields,
    rerank_decoder,
    score_decoder,
)

from ...generation.chat_model import ChatModel
from ...generation.label_scores import label_scores
from ...middleware.auth import caller_of
from ...overload.request_context import RequestContext
from ...pooling.pairs import PairRules, check_arguments
from ...pooling.scoring import scores_of
from ...pooling.seen_scoring import scores_of_seen
from ..common.described import Operations, generation
from ..common.endpoint import generation_route, json_response
from .requests import EmbeddingServices, ResolvedRequest, now, reading_of, resolve_request

_SCORE: Final = ("/score", "/v1/score")
_RERANK: Final = ("/rerank", "/v1/rerank", "/v2/rerank")

OPERATIONS: Final[Operations] = {
    **dict.fromkeys(
        _SCORE,
        generation(
            "Score pairs of texts or pictures by similarity or relevance, or items by next tokens (SGLang)",
            ScoreResponse | LabelScoreResponse,
            ScoreRequest,
        ),
    ),
    **dict.fromkeys(
        _RERANK,
        generation("Rank documents by relevance to a query", RerankResponse | list[RankedText], RerankRequest),
    ),
}


def routes(services: EmbeddingServices) -> list[Route]:
    return [
        *(generation_route(path, services, score, "embedding") for path in _SCORE),
        *(generation_route(path, services, rerank, "embedding") for path in _RERANK),
    ]


async def score(services: EmbeddingServices, request: Request, content: bytes, context: RequestContext) -> Response:
    if decode(score_kind_decoder, content, services.limits).label_token_ids is not None:
        return await _by_labels(services.chat, request, content, context)
    body = decode(score_decoder, content, services.limits)
    first, second, fields = body.sides(services.limits)
    what = resolve_request(services, request, context, body.model, body.priority, body.cache_salt, body.request_id)
    scores = await _scores(services, what, body, first, second, fields)
    data = [Score(index, value) for index, value in enumerate(scores)]
    return json_response(ScoreResponse(what.id("score"), now(), what.name, data, what.usage))


async def _by_labels(chat: ChatModel, request: Request, content: bytes, context: RequestContext) -> Response:
    body = decode(label_score_decoder, content, chat.limits)
    found = await label_scores(chat, body, caller_of(request.scope), context, among_labels=body.apply_softmax)
    prompt = found.usage.prompt_tokens  # SGLang does not count the token that is scored
    return json_response(LabelScoreResponse(found.probabilities, found.model, LabelUsage(prompt, prompt, 0)))


async def rerank(services: EmbeddingServices, request: Request, content: bytes, context: RequestContext) -> Response:
    body = decode(rerank_decoder, content, services.limits)
    query, documents = body.sides(services.limits)
    what = resolve_request(services, request, context, body.model, body.priority, body.cache_salt, body.request_id)
    field = "documents" if body.texts is None else "texts"
    scores = await _scores(services, what, body, [query], documents, ("query", field))
    best = sorted(range(len(scores)), key=lambda place: -scores[place])[: body.top_n or len(scores)]
    if body.texts is not None:
        texts = body.texts
        return json_response(
            [RankedText(place, scores[place], texts[place] if body.return_text else UNSET) for place in best]
        )
    results = [
        Ranked(place, scores[place], Document.of(documents[place]) if body.return_documents else UNSET)
        for place in best
    ]
    return json_response(RerankResponse(what.id("rerank"), what.name, what.usage, results))


async def _scores(
    services: EmbeddingServices,
    what: ResolvedRequest,
    body: ScoringFields,
    queries: Sequence[Content],
    documents: Sequence[Content],
    fields: tuple[str, str],
) -> list[float]:
    reading = reading_of(services, what, body)
    rules = PairRules(
        reading.room,
        body.max_tokens_per_query,
        body.max_tokens_per_doc or 0,
        body.given_instruction,
        body.template_arguments,
        body.use_activation is not False,
        reading,
    )
    check_arguments(what.model, rules)
    asked, told = ([plain_text(each) for each in side] for side in (queries, documents))
    first, second = ([text for text in side if text is not None] for side in (asked, told))
    if len(first) == len(asked) and len(second) == len(told):
        return await scores_of(what.model, what.job, first, second, rules, fields)
    return await scores_of_seen(what.model, what.job, queries, documents, rules, fields)
