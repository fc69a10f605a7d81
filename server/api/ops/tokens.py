"""``POST /tokenize`` and ``/detokenize``."""

from array import array
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from stentor.protocols.common.decoding import decode
from stentor.protocols.common.encoding import encode
from stentor.protocols.openai.sampling import check_token_ids
from stentor.protocols.openai.tokens import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
    TokenPiece,
    detokenize_decoder,
    tokenize_decoder,
)

from ...generation.admission import context_length
from ...generation.chat_model import ChatModel
from ...generation.prepare import prompt_of
from ...overload.request_context import RequestContext
from ..common.described import Operations, generation
from ..common.endpoint import generation_route, json_response

_PIECE: Final = 4096
"""Tokens of an answer that are encoded at a time."""

OPERATIONS: Final[Operations] = {
    "/tokenize": generation("Tokenize a text or a conversation", TokenizeResponse, TokenizeRequest),
    "/detokenize": generation("Turn token ids into text", DetokenizeResponse, DetokenizeRequest),
}


def routes(chat: ChatModel) -> list[Route]:
    return [
        generation_route("/tokenize", chat, tokenize),
        generation_route("/detokenize", chat, detokenize),
    ]


async def tokenize(chat: ChatModel, _request: Request, content: bytes, context: RequestContext) -> Response:
    body = decode(tokenize_decoder, content, chat.limits)
    body.check(chat.limits)
    chat.resolve(body.model)
    if body.messages is not None:
        tokens = array("I", await prompt_of(chat, body.chat(), context.queue_slot.memory))
    else:
        tokens = await chat.pool.encode_packed(body.text or "", body.adds_special_tokens, field=body.field)
    context.queue_slot.memory.add(tokens.itemsize * len(tokens), body.field)
    if len(tokens) > _PIECE:
        pieces = _pieces(chat, tokens, context_length(chat), body)
        return StreamingResponse(pieces, media_type="application/json")
    listed = await _listed(chat, tokens, body)
    strings = await chat.pool.token_texts(tokens) if body.return_token_strs else None
    return json_response(TokenizeResponse(len(tokens), context_length(chat), listed, strings))


async def _listed(chat: ChatModel, tokens: "array[int]", body: TokenizeRequest) -> Sequence[int | TokenPiece]:
    if not body.with_pieces:
        return tokens.tolist()
    tokenizer = chat.pool.tokenizer
    return await chat.pool.run(lambda: [TokenPiece(id, _text_or_bytes(tokenizer.token_bytes(id))) for id in tokens])


def _text_or_bytes(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


async def _pieces(
    chat: ChatModel, tokens: "array[int]", max_len: int, body: TokenizeRequest
) -> AsyncGenerator[bytes, None]:
    """The JSON of a :class:`TokenizeResponse` in pieces, so that only one piece is in memory."""
    yield b'{"count":%d,"max_model_len":%d,"tokens":[' % (len(tokens), max_len)
    for start in range(0, len(tokens), _PIECE):
        yield _items(await _listed(chat, tokens[start : start + _PIECE], body), start)
    if not body.return_token_strs:
        yield b'],"token_strs":null}'
        return
    yield b'],"token_strs":['
    for start in range(0, len(tokens), _PIECE):
        yield _items(await chat.pool.token_texts(tokens[start : start + _PIECE]), start)
    yield b"]}"


def _items(values: Sequence[object], start: int) -> bytes:
    """Items of a list, behind ``start`` others."""
    return (b"," if start else b"") + encode(values)[1:-1]


async def detokenize(chat: ChatModel, _request: Request, content: bytes, _context: RequestContext) -> Response:
    body = decode(detokenize_decoder, content, chat.limits)
    chat.resolve(body.model)
    check_token_ids(body.tokens, chat.vocab_size, "tokens")
    text = await chat.pool.decode(body.tokens, skip_special_tokens=False)
    return json_response(DetokenizeResponse(prompt=text, content=text))
