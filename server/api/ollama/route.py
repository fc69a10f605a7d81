"""``POST /api/chat`` and ``/api/generate``: Ollama's protocol."""

from contextlib import aclosing
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from stentor.protocols.common.decoding import decode
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.ipc.deltas import Delta
from stentor.protocols.ollama.objects import DoneReason, OllamaChatResponse, OllamaGenerateResponse
from stentor.protocols.ollama.request import (
    GenerationFields,
    OllamaChatRequest,
    OllamaGenerateRequest,
    chat_decoder,
    generate_decoder,
)

from ...generation.admission import GenerationOptions
from ...generation.chat_model import ChatModel
from ...generation.completion import prepare_completion
from ...generation.logprobs import TokenNames
from ...generation.prepare import prepare_generation
from ...http.error_responses import error_frame
from ...http.error_shapes import OLLAMA
from ...http.sse import LINES, Batches, EventStream
from ...http.whole_answer import AnswerBudget
from ...middleware.auth import caller_of
from ...overload.request_context import RequestContext
from ..common.described import Operations, generation
from ..common.endpoint import generation_route, json_response
from .encoder import AnswerShape, AnswerStream, whole_answer
from .translate import chat_request, in_their_names, known_name, prompt_request, text_request

OPERATIONS: Final[Operations] = {
    "/api/chat": generation(
        "Answer a conversation (Ollama's API)", OllamaChatResponse, OllamaChatRequest, streams=True, errors=OLLAMA
    ),
    "/api/generate": generation(
        "Answer or complete a prompt (Ollama's API)",
        OllamaGenerateResponse,
        OllamaGenerateRequest,
        streams=True,
        errors=OLLAMA,
    ),
}


def routes(chat: ChatModel) -> list[Route]:
    return [generation_route("/api/chat", chat, answer_chat), generation_route("/api/generate", chat, answer_prompt)]


async def answer_chat(chat: ChatModel, request: Request, content: bytes, context: RequestContext) -> ASGIApp:
    body = decode(chat_decoder, content, chat.limits)
    body.check()
    model = chat.resolve(known_name(chat.registry, body.model))
    if not body.messages:
        return _loaded(chat, "chat", body, context)
    _check_thinking(chat, body)
    with in_their_names():
        made = chat_request(body, model)
        options = GenerationOptions(fill_context=True, whole=not body.stream)
        prepared = await prepare_generation(chat, made, caller_of(request.scope), context, options)
    shape = _shape(chat, "chat", body, context, len(prepared.prompt))
    return await _answer(chat, shape, prepared.batches, context, stream=body.stream)


async def answer_prompt(chat: ChatModel, request: Request, content: bytes, context: RequestContext) -> ASGIApp:
    body = decode(generate_decoder, content, chat.limits)
    body.check()
    model = chat.resolve(known_name(chat.registry, body.model))
    if not (body.prompt or body.suffix or body.images):
        return _loaded(chat, "generate", body, context)
    _check_thinking(chat, body)
    caller = caller_of(request.scope)
    batches: Batches[list[Delta]]
    with in_their_names():
        if body.raw or body.suffix:
            wanted = text_request(body, model)
            wanted.check(chat.limits)
            (job,) = (await prepare_completion(chat, wanted, caller, context, fill_context=True)).jobs
            prompt, batches = job.prompt.tokens, job.batches
        else:
            options = GenerationOptions(fill_context=True, whole=not body.stream)
            prepared = await prepare_generation(chat, prompt_request(body, model), caller, context, options)
            prompt, batches = prepared.prompt, prepared.batches
    shape = _shape(chat, "generate", body, context, len(prompt))
    return await _answer(chat, shape, batches, context, stream=body.stream)


async def _answer(
    chat: ChatModel, shape: AnswerShape, batches: Batches[list[Delta]], context: RequestContext, *, stream: bool
) -> ASGIApp:
    if stream:
        return EventStream(
            batches,
            AnswerStream(shape),
            bounds=context.bounded,
            to_frame=partial(error_frame, shape=OLLAMA),
            sign_of_life=shape.line(),
            media_type=LINES,
        )
    async with aclosing(batches):
        budget = AnswerBudget(chat.limits.max_answer_bytes, context.queue_slot.memory)
        return json_response(await whole_answer(shape, batches, budget))


def _loaded(chat: ChatModel, kind: str, body: GenerationFields, context: RequestContext) -> ASGIApp:
    """Answers requests to load or unload a model with success; models stay loaded."""
    reason: DoneReason = "unload" if body.unloads else "load"
    return json_response(_shape(chat, kind, body, context, 0).loaded(reason))


def _shape(
    chat: ChatModel, kind: str, body: GenerationFields, context: RequestContext, prompt_tokens: int
) -> AnswerShape:
    return AnswerShape(
        "chat" if kind == "chat" else "generate",
        body.model,
        prompt_tokens,
        context.arrival,
        TokenNames(chat.pool.tokenizer, as_ids=False),
        (body.top_logprobs or 0) if body.logprobs else None,
        body.think is not False,
    )


def _check_thinking(chat: ChatModel, body: GenerationFields) -> None:
    """Raises BadRequest, with Ollama's message, if a model without reasoning is asked to think."""
    if body.think and chat.output.reasoning is None:
        raise BadRequest(f'"{body.model}" does not support thinking', "think", "unsupported")
