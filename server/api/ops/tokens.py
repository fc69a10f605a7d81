"""``POST /tokenize`` and ``/detokenize``."""

from array import array
from collections.abc import AsyncGenerator, Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from stentor.protocols.common.decoding import decode
from stentor.protocols.common.encoding import encode
from stentor.protocols.common.errors import refused
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

from ...config.adapters import ModelRole
from ...generation.admission import context_length
from ...generation.chat_model import ChatModel
from ...generation.prepare import prompt_of
from ...overload.request_context import RequestContext
from ...pooling.model import EmbeddingModel
from ...state.admission_control import AdmissionControl
from ...text.pool import TokenizerPool
from ..common.described import Operations, generation
from ..common.endpoint import generation_route, json_response

LISTED_BYTES: Final = 48
"""Memory of a token in a list: the integer, its place, and its digits in the answer."""
_PIECE: Final = 4096
"""Tokens of an answer that are encoded at a time."""

OPERATIONS: Final[Operations] = {
    "/tokenize": generation("Tokenize a text or a conversation", TokenizeResponse, TokenizeRequest),
    "/detokenize": generation("Turn token ids into text", DetokenizeResponse, DetokenizeRequest),
}


class TokenServices(msgspec.Struct, frozen=True):
    chat: ChatModel
    embedding: EmbeddingModel | None

    @property
    def admission(self) -> AdmissionControl:
        return self.chat.admission


class _TextSide(msgspec.Struct, frozen=True):
    """The text side of one model."""

    pool: TokenizerPool
    max_len: int
    vocab_size: int


def routes(chat: ChatModel, embedding: EmbeddingModel | None) -> list[Route]:
    services = TokenServices(chat, embedding)
    return [
        generation_route("/tokenize", services, tokenize),
        generation_route("/detokenize", services, detokenize),
    ]


def _side_of(services: TokenServices, model: str | None) -> _TextSide:
    """That of the model that a request named: a chat or an embedding model; None means the first of these. Raises
    BadRequest, and Unavailable before the engine is ready."""
    chat, embedding = services.chat, services.embedding
    if embedding is not None:
        kind: ModelRole = "embedding" if chat.registry.of_kind("chat") is None else "chat"
        if (kind if model is None else chat.registry.find(model, kind=kind).kind) == "embedding":
            return _TextSide(embedding.pool, embedding.max_length, embedding.config.vocab_size)
    chat.resolve(model)
    return _TextSide(chat.pool, context_length(chat), chat.vocab_size)


async def tokenize(services: TokenServices, _request: Request, content: bytes, context: RequestContext) -> Response:
    chat = services.chat
    body = decode(tokenize_decoder, content, chat.limits)
    body.check(chat.limits)
    if body.messages is not None:
        chat.resolve(body.model)
    side = _side_of(services, body.model)
    if body.messages is not None:
        tokens = array("I", await prompt_of(chat, body.chat(), context.queue_slot.memory))
    elif body.texts is not None:
        return await _several(side, body.texts, body, context)
    else:
        tokens = await _joined(side, body)
    context.queue_slot.memory.add(tokens.itemsize * len(tokens), body.field)
    if len(tokens) > _PIECE:
        return StreamingResponse(_pieces(side, tokens, body), media_type="application/json")
    listed = await _listed(side, tokens, body)
    strings = await side.pool.token_texts(tokens) if body.return_token_strs else None
    return json_response(TokenizeResponse(len(tokens), side.max_len, listed, strings))


async def _joined(side: _TextSide, body: TokenizeRequest) -> "array[int]":
    """Tokens of a text, or of texts and tokens in turn, of which only a first text gets special tokens."""
    pieces = [body.text or ""] if body.pieces is None else body.pieces
    check_token_ids([piece for piece in pieces if isinstance(piece, int)], side.vocab_size, body.field)
    texts = [piece for piece in pieces if isinstance(piece, str)]
    special = side.pool.tokenizer.special_texts
    if not body.parse_special and any(each in text for text in texts for each in special):
        raise refused("parse_special", "special tokens are read as such in every text; leave it out", "unsupported")
    if len(pieces) == len(texts) == 1:
        return await side.pool.encode_packed(texts[0], body.adds_special_tokens, field=body.field)
    begun = 1 if pieces and isinstance(pieces[0], str) else 0
    encoded = iter(
        [
            *await side.pool.encode_batch(texts[:begun], body.adds_special_tokens, field=body.field),
            *await side.pool.encode_batch(texts[begun:], False, field=body.field),
        ]
    )
    tokens = array("I")
    for piece in pieces:
        tokens.extend([piece] if isinstance(piece, int) else next(encoded))
    return tokens


async def _several(side: _TextSide, texts: list[str], body: TokenizeRequest, context: RequestContext) -> Response:
    made: list[list[int]] = []
    for text in texts:
        tokens = await side.pool.encode_packed(text, body.adds_special_tokens, field="prompt")
        context.queue_slot.memory.add(LISTED_BYTES * len(tokens), "prompt")
        made.append(tokens.tolist())
    return json_response(TokenizeResponse([len(tokens) for tokens in made], side.max_len, made, None))


async def _listed(side: _TextSide, tokens: "array[int]", body: TokenizeRequest) -> Sequence[int | TokenPiece]:
    if not body.with_pieces:
        return tokens.tolist()
    tokenizer = side.pool.tokenizer
    return await side.pool.run(lambda: [TokenPiece(id, _text_or_bytes(tokenizer.token_bytes(id))) for id in tokens])


def _text_or_bytes(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


async def _pieces(side: _TextSide, tokens: "array[int]", body: TokenizeRequest) -> AsyncGenerator[bytes, None]:
    """The JSON of a :class:`TokenizeResponse` in pieces, so that only one piece is in memory."""
    yield b'{"count":%d,"max_model_len":%d,"tokens":[' % (len(tokens), side.max_len)
    for start in range(0, len(tokens), _PIECE):
        yield _items(await _listed(side, tokens[start : start + _PIECE], body), start)
    if not body.return_token_strs:
        yield b'],"token_strs":null}'
        return
    yield b'],"token_strs":['
    for start in range(0, len(tokens), _PIECE):
        yield _items(await side.pool.token_texts(tokens[start : start + _PIECE]), start)
    yield b"]}"


def _items(values: Sequence[object], start: int) -> bytes:
    """Items of a list, behind ``start`` others."""
    return (b"," if start else b"") + encode(values)[1:-1]


async def detokenize(services: TokenServices, _request: Request, content: bytes, _context: RequestContext) -> Response:
    body = decode(detokenize_decoder, content, services.chat.limits)
    side = _side_of(services, body.model)
    texts: list[str] = []
    for index, tokens in enumerate(body.each):
        check_token_ids(tokens, side.vocab_size, f"tokens[{index}]" if body.several else "tokens")
        texts.append(await side.pool.decode(tokens, skip_special_tokens=body.skip_special_tokens))
    text = texts if body.several else texts[0]
    return json_response(DetokenizeResponse(prompt=text, content=text, text=text))
