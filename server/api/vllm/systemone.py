"""``POST /v1/systemone``: questions about a state, answered by the probabilities of their options (vLLM)."""

import time
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stentor.protocols.common.decoding import decode
from stentor.protocols.openai.systemone import (
    Kind,
    SystemOneChoice,
    SystemOneDiagnostics,
    SystemOneNoul,
    SystemOneQuestion,
    SystemOneRequest,
    SystemOneResponse,
    SystemOneScore,
    SystemOneUsage,
    decoder,
)

from ...generation.chat_model import ChatModel
from ...generation.decisions import LabelKind, Option, Question, Reading, read_answers
from ...generation.error_fields import map_error_fields
from ...middleware.auth import caller_of
from ...overload.request_context import RequestContext
from ..common.described import Operations, generation
from ..common.endpoint import generation_route, json_response, name_anew, request_id

OPERATIONS: Final[Operations] = {
    "/v1/systemone": generation(
        "Answer questions about a state by the probabilities of options (vLLM)", SystemOneResponse, SystemOneRequest
    ),
}
_LABELS: Final[dict[Kind, LabelKind]] = {"choice": "letters", "noul": "yes or no", "score": "levels"}


def routes(chat: ChatModel) -> list[Route]:
    return [generation_route("/v1/systemone", chat, decide)]


async def decide(chat: ChatModel, request: Request, content: bytes, context: RequestContext) -> Response:
    body = decode(decoder, content, chat.limits)
    body.check(chat.limits)
    questions = [_question(name, one) for name, one in body.questions.items()]
    name_anew(request, body.request_id)
    fields = {
        "model": body.model,
        "cache_salt": body.cache_salt,
        "priority": body.priority,
        "chat_template_kwargs": body.chat_template_kwargs,
    }
    pictures = {f"messages[{place}].content": "images" for place in range(2)} if body.images else {}
    with map_error_fields({"messages": "state", **pictures}):
        model, readings = await read_answers(chat, body.messages, questions, fields, caller_of(request.scope), context)
    found = dict(zip(body.questions, zip(questions, readings, strict=True), strict=True))
    return json_response(
        SystemOneResponse(
            id=f"decision-{request_id(request)}",
            created=int(time.time()),
            model=model,
            answers={name: _answer(body.questions[name].type, *each) for name, each in found.items()},
            usage=SystemOneUsage(sum(reading.prompt_tokens for reading in readings), len(readings)),
            diagnostics={
                name: SystemOneDiagnostics(reading.label_mass, reading.is_label) for name, (_, reading) in found.items()
            },
        )
    )


def _question(name: str, asked: SystemOneQuestion) -> Question:
    field = f"questions.{name}"
    options = [Option(*each) for each in asked.options(field)]
    return Question(f"{field}.criteria", asked.text, options, _LABELS[asked.type])


def _answer(kind: Kind, question: Question, reading: Reading) -> SystemOneChoice | SystemOneNoul | SystemOneScore:
    names = [option.name for option in question.options]
    by_name = dict(zip(names, reading.probabilities, strict=True))
    match kind:
        case "choice":
            return SystemOneChoice(names[reading.best], by_name, reading.confidence)
        case "noul":
            return SystemOneNoul(reading.probabilities[0], by_name, reading.confidence)
        case _:
            by_level = {str(level): each for level, each in enumerate(reading.probabilities)}
            return SystemOneScore(reading.mean, dict(zip(by_level, names, strict=True)), by_level, reading.confidence)
