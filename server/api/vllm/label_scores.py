"""``POST /generative_scoring``: items by the probability of a next token (vLLM)."""

import time
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stentor.protocols.common.decoding import decode
from stentor.protocols.openai.label_scores import (
    GenerativeScoringRequest,
    GenerativeScoringResponse,
    LabelScore,
    generative_scoring_decoder,
)

from ...generation.chat_model import ChatModel
from ...generation.label_scores import label_scores
from ...middleware.auth import caller_of
from ...overload.request_context import RequestContext
from ..common.described import Operations, generation
from ..common.endpoint import generation_route, json_response, name_anew, request_id

OPERATIONS: Final[Operations] = {
    "/generative_scoring": generation(
        "Score items by the probability of a next token (vLLM)", GenerativeScoringResponse, GenerativeScoringRequest
    ),
}


def routes(chat: ChatModel) -> list[Route]:
    return [generation_route("/generative_scoring", chat, score)]


async def score(chat: ChatModel, request: Request, content: bytes, context: RequestContext) -> Response:
    body = decode(generative_scoring_decoder, content, chat.limits)
    name_anew(request, body.request_id)
    found = await label_scores(
        chat,
        body,
        caller_of(request.scope),
        context,
        among_labels=body.apply_softmax,
        special_tokens=body.add_special_tokens,
    )
    data = [LabelScore(index, each[0]) for index, each in enumerate(found.probabilities)]
    name = f"generative-scoring-{request_id(request)}"
    return json_response(GenerativeScoringResponse(name, int(time.time()), found.model, data, found.usage))
