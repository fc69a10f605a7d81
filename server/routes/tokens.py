"""``POST /tokenize`` and ``/detokenize``."""

from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stentor.protocols.openai.decoding import decode
from stentor.protocols.openai.sampling import check_token_ids
from stentor.protocols.openai.tokens import (
    DetokenizeResponse,
    TokenizeResponse,
    detokenize_decoder,
    tokenize_decoder,
)

from ..state import ServerState
from .admission import context_length
from .endpoint import json_response, read_body
from .rendering import render_messages


def routes(state: ServerState) -> list[Route]:
    return [
        Route("/tokenize", partial(tokenize, state), methods=["POST"]),
        Route("/detokenize", partial(detokenize, state), methods=["POST"]),
    ]


async def tokenize(state: ServerState, request: Request) -> Response:
    body = decode(tokenize_decoder, await read_body(request))
    body.check()
    state.resolve_model(body.model)
    if body.messages is not None:
        tokens = await render_messages(state, body, body.messages, bool(body.add_special_tokens))
    else:
        special = body.add_special_tokens is not False
        tokens = await state.pool.encode(body.prompt or "", add_special_tokens=special)
    strings = await state.pool.token_texts(tokens) if body.return_token_strs else None
    return json_response(TokenizeResponse(len(tokens), context_length(state), tokens, strings))


async def detokenize(state: ServerState, request: Request) -> Response:
    body = decode(detokenize_decoder, await read_body(request))
    state.resolve_model(body.model)
    check_token_ids(body.tokens, state.vocab_size, "tokens")
    return json_response(DetokenizeResponse(await state.pool.decode(body.tokens, skip_special_tokens=False)))
