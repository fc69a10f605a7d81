"""``POST /tokenize`` and ``/detokenize``."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stentor.protocols.openai.decoding import decode
from stentor.protocols.openai.sampling import check_token_ids
from stentor.protocols.openai.tokens import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
    detokenize_decoder,
    tokenize_decoder,
)

from ..conversation.admission import context_length
from ..conversation.turn import prompt_of
from ..overload.ticket import Ticket
from ..state import ServerState
from .described import Operation, Operations
from .endpoint import GenerationEndpoint, json_response

OPERATIONS: Final[Operations] = {
    "/tokenize": Operation(
        "Token ids of a text or a conversation", TokenizeResponse, TokenizeRequest, finds=True, generates=True
    ),
    "/detokenize": Operation(
        "The text of token ids", DetokenizeResponse, DetokenizeRequest, finds=True, generates=True
    ),
}


def routes(state: ServerState) -> list[Route]:
    return [
        Route("/tokenize", GenerationEndpoint(state, tokenize), methods=["POST"]),
        Route("/detokenize", GenerationEndpoint(state, detokenize), methods=["POST"]),
    ]


async def tokenize(state: ServerState, _request: Request, content: bytes, _ticket: Ticket) -> Response:
    body = decode(tokenize_decoder, content, state.limits)
    body.check(state.limits)
    state.resolve_model(body.model)
    if body.messages is not None:
        tokens = await prompt_of(state, body.chat())
    else:
        special = body.add_special_tokens is not False
        tokens = await state.pool.encode(body.prompt or "", add_special_tokens=special)
    strings = await state.pool.token_texts(tokens) if body.return_token_strs else None
    return json_response(TokenizeResponse(len(tokens), context_length(state), tokens, strings))


async def detokenize(state: ServerState, _request: Request, content: bytes, _ticket: Ticket) -> Response:
    body = decode(detokenize_decoder, content, state.limits)
    state.resolve_model(body.model)
    check_token_ids(body.tokens, state.vocab_size, "tokens")
    return json_response(DetokenizeResponse(await state.pool.decode(body.tokens, skip_special_tokens=False)))
