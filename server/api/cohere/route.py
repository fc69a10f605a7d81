"""``POST /v2/chat`` of Cohere's API. vLLM's path is ``/cohere/v2/chat``."""

from contextlib import aclosing
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from stentor.protocols.cohere.chat import CohereChatRequest, CohereChatResponse, decoder
from stentor.protocols.common.decoding import decode

from ...generation.admission import GenerationOptions
from ...generation.chat_model import ChatModel
from ...generation.logprobs import TokenNames
from ...generation.prepare import prepare_generation
from ...http.error_responses import error_frame
from ...http.error_shapes import COHERE
from ...http.sse import EventStream
from ...middleware.auth import caller_of
from ...overload.request_context import RequestContext
from ..common.described import Operations, generation
from ..common.endpoint import generation_route, json_response, request_id
from .encoder import ChatShape, ChatStream, whole_answer
from .translate import chat_request, in_their_names

OPERATIONS: Final[Operations] = {
    "/v2/chat": generation(
        "Answer a conversation (Cohere's API)", CohereChatResponse, CohereChatRequest, streams=True, errors=COHERE
    ),
}


def routes(chat: ChatModel) -> list[Route]:
    return [generation_route("/v2/chat", chat, answer)]


async def answer(chat: ChatModel, request: Request, content: bytes, context: RequestContext) -> ASGIApp:
    body = decode(decoder, content, chat.limits)
    body.check()
    with in_their_names():
        made = chat_request(body)
        options = GenerationOptions(fill_context=body.max_tokens is None, whole=not body.stream)
        prepared = await prepare_generation(chat, made, caller_of(request.scope), context, options)
    shape = ChatShape(
        request_id(request),
        len(prepared.prompt),
        TokenNames(chat.pool.tokenizer, as_ids=False),
        body.logprobs,
        body.thinking is None or body.thinking.type == "enabled",
    )
    if body.stream:
        to_frame = partial(error_frame, shape=COHERE)
        return EventStream(prepared.batches, ChatStream(shape), bounds=context.bounded, to_frame=to_frame)
    async with aclosing(prepared.batches):
        return json_response(await whole_answer(shape, prepared.batches))
