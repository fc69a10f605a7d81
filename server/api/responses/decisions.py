"""``POST /v1/decisions``: questions about an input, answered by the probabilities of their options."""

from typing import Final, assert_never

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stentor.protocols.common.decoding import decode
from stentor.protocols.openai.decisions import (
    Choice,
    ChoiceAnswer,
    ChoiceProbability,
    DecisionInputDetails,
    DecisionOutputDetails,
    DecisionRequest,
    DecisionResponse,
    DecisionUsage,
    LevelProbability,
    Predicate,
    PredicateAnswer,
    Score,
    ScoreAnswer,
    decoder,
    written_json,
)
from stentor.protocols.openai.responses.items import read_items

from ...generation.chat_model import ChatModel
from ...generation.decisions import LabelKind, Option, Question, Reading, read_answers
from ...generation.error_fields import map_error_fields
from ...middleware.auth import caller_of
from ...overload.request_context import RequestContext
from ..common.described import Operations, generation
from ..common.endpoint import generation_route, json_response
from .conversion import messages_of
from .ids import random_id

OPERATIONS: Final[Operations] = {
    "/v1/decisions": generation("Answer questions by the probabilities of options", DecisionResponse, DecisionRequest),
}


def routes(chat: ChatModel) -> list[Route]:
    return [generation_route("/v1/decisions", chat, decide)]


async def decide(chat: ChatModel, request: Request, content: bytes, context: RequestContext) -> Response:
    body = decode(decoder, content, chat.limits)
    body.check(chat.limits)
    items = read_items(body.input, chat.limits, random_id)
    questions = [_question(one, f"questions[{index}]") for index, one in enumerate(body.questions)]
    fields = {"model": body.model, "cache_salt": body.cache_salt}
    named = {item["id"]: f"input[{index}]" for index, item in enumerate(items)}
    messages = messages_of(items, _unsealed, named)
    with map_error_fields({"messages": "input"}):
        model, readings = await read_answers(chat, messages, questions, fields, caller_of(request.scope), context)
    answers = [_answer(*each) for each in zip(body.questions, readings, strict=True)]
    return json_response(DecisionResponse(model, answers, _usage(readings)))


def _unsealed(_text: str, _use: bytes = b"", /) -> str:
    raise AssertionError("no item of a decision is sealed")


def _question(asked: Predicate | Choice | Score, field: str) -> Question:
    kind: LabelKind = "letters"
    match asked:
        case Predicate():
            kind, options = "yes or no", [Option("yes"), Option("no")]
        case Choice():
            field += ".choices"
            options = [Option(written_json(one.value), one.description) for one in asked.choices]
        case Score():
            field += ".levels"
            kind, options = "levels", [Option(one.label, one.description) for one in asked.levels]
        case other:
            assert_never(other)
    return Question(field, asked.text, options, kind)


def _answer(asked: Predicate | Choice | Score, reading: Reading) -> PredicateAnswer | ChoiceAnswer | ScoreAnswer:
    match asked:
        case Predicate():
            return PredicateAnswer(asked.name, reading.probabilities[0])
        case Choice():
            of_each = zip(asked.choices, reading.probabilities, strict=True)
            probabilities = [ChoiceProbability(option.value, each) for option, each in of_each]
            return ChoiceAnswer(asked.name, asked.choices[reading.best].value, probabilities, reading.confidence)
        case Score():
            levels = enumerate(zip(asked.levels, reading.probabilities, strict=True))
            of_levels = [LevelProbability(place, level.label, each) for place, (level, each) in levels]
            return ScoreAnswer(asked.name, reading.mean, of_levels, reading.confidence)


def _usage(readings: list[Reading]) -> DecisionUsage:
    prompts = sum(reading.prompt_tokens for reading in readings)
    cached = DecisionInputDetails(sum(reading.cached_tokens for reading in readings))
    return DecisionUsage(prompts, cached, len(readings), DecisionOutputDetails(), prompts + len(readings))
