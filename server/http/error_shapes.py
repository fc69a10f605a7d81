"""Shapes of errors: each path belongs to a protocol, and each protocol has its own shape.

Every part that refuses a request, from the connection to the route, uses :func:`shape_of` for its path; no other code
writes an error.
"""

import re
from collections.abc import Iterable
from typing import Any, Final, Protocol

from msgspec import UNSET

from stentor.protocols.anthropic.errors import CODES, ErrorDetails, MessageError, MessageErrorResponse, kind_of
from stentor.protocols.cohere.chat import CohereError
from stentor.protocols.common.encoding import encode
from stentor.protocols.common.errors import ErrorBody, ErrorResponse
from stentor.protocols.hugging_face.objects import HuggingFaceError
from stentor.protocols.llama_cpp.objects import LlamaError, LlamaErrorBody
from stentor.protocols.ollama.objects import OllamaError

from ..observability.request import current_request_id

_MESSAGES: Final = re.compile(r"/v1/messages(?:/|$)")
_SHARED: Final = re.compile(r"/v1/(?:models|files)(?:/|$)")
_OLLAMA: Final = re.compile(r"/api(?:/|$)")
_COHERE: Final = re.compile(r"/v2/(?:chat|embed)$")
_TEXT_GENERATION: Final = re.compile(r"/(?:generate|generate_stream|info)?$")
_TEXT_EMBEDDINGS: Final = re.compile(r"/(?:embed|embed_all|embed_sparse|predict|similarity)$")
_LLAMA_CPP: Final = re.compile(
    r"/(?:completions?|infill|apply-template|props|embeddings?|lora-adapters|slots(?:/[^/]+)?)$"
)


class ErrorShape(Protocol):
    @property
    def name(self) -> str:
        """In the document of the API; empty for the shape that most endpoints have."""

    @property
    def struct(self) -> type[Any]:
        """Type of the response's body."""

    def body(self, status: int, error: ErrorBody, request_id: str) -> bytes:
        """The response's body; ``request_id`` is empty if the request has none."""

    def frame(self, status: int, error: ErrorBody) -> bytes:
        """The error as an event of a stream that has begun."""

    @property
    def id_header(self) -> bytes | None:
        """A header with the request id, besides ``x-request-id``."""


class _OpenAi:
    name = ""
    struct = ErrorResponse
    id_header = None

    def body(self, status: int, error: ErrorBody, request_id: str) -> bytes:
        return encode(ErrorResponse(error))

    def frame(self, status: int, error: ErrorBody) -> bytes:
        return b"data: " + encode(ErrorResponse(error)) + b"\n\n"


class _Anthropic:
    name = "messages"
    struct = MessageErrorResponse
    id_header = b"request-id"

    def body(self, status: int, error: ErrorBody, request_id: str) -> bytes:
        message = _with_field(error)
        if error.code == "context_length_exceeded":
            # there is no code in this shape; clients that shorten conversations by themselves look for these words
            message = f"prompt is too long: {error.message}"
        details = ErrorDetails(error.code) if error.code in CODES else UNSET
        return encode(MessageErrorResponse(MessageError(kind_of(status), message, details), request_id or None))

    def frame(self, status: int, error: ErrorBody) -> bytes:
        return b"event: error\ndata: " + self.body(status, error, current_request_id()) + b"\n\n"


class _Ollama:
    name = "ollama"
    struct = OllamaError
    id_header = None

    def body(self, status: int, error: ErrorBody, request_id: str) -> bytes:
        return encode(OllamaError(_with_field(error)))

    def frame(self, status: int, error: ErrorBody) -> bytes:
        return self.body(status, error, "") + b"\n"


class _LlamaCpp:
    name = "llama_cpp"
    struct = LlamaError
    id_header = None

    def body(self, status: int, error: ErrorBody, request_id: str) -> bytes:
        kind = "exceed_context_size_error" if error.code == "context_length_exceeded" else _llama_kind(status)
        return encode(LlamaError(LlamaErrorBody(status, _with_field(error), kind, error.n_prompt_tokens, error.n_ctx)))

    def frame(self, status: int, error: ErrorBody) -> bytes:
        return b"data: " + self.body(status, error, "") + b"\n\n"


class _Cohere:
    name = "cohere"
    struct = CohereError
    id_header = None

    def body(self, status: int, error: ErrorBody, request_id: str) -> bytes:
        return encode(CohereError(_with_field(error), request_id or None))

    def frame(self, status: int, error: ErrorBody) -> bytes:
        ended = {"finish_reason": "ERROR", "error": _with_field(error)}
        return b"data: " + encode({"type": "message-end", "delta": ended}) + b"\n\n"


def _llama_kind(status: int) -> str:
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
    kinds |= dict.fromkeys((429, 503), "unavailable_error")
    return kinds.get(status, "invalid_request_error" if status < 500 else "server_error")


class _HuggingFace:
    struct = HuggingFaceError
    id_header = None

    def __init__(self, name: str, invalid: str, overloaded: str, failed: str) -> None:
        """The types of errors, as one of the two servers has them."""
        self.name = name
        self._types = invalid, overloaded, failed

    def body(self, status: int, error: ErrorBody, request_id: str) -> bytes:
        invalid, overloaded, failed = self._types
        kind = overloaded if status in (429, 503) else failed if status >= 500 else invalid
        return encode(HuggingFaceError(_with_field(error), kind))

    def frame(self, status: int, error: ErrorBody) -> bytes:
        return b"data: " + self.body(status, error, "") + b"\n\n"


def _with_field(error: ErrorBody) -> str:
    """The message, for shapes that have no ``param``."""
    if error.param is None or f"`{error.param}" in error.message:
        return error.message
    return f"`{error.param}`: {error.message}"


OPENAI: Final[ErrorShape] = _OpenAi()
ANTHROPIC: Final[ErrorShape] = _Anthropic()
OLLAMA: Final[ErrorShape] = _Ollama()
LLAMA_CPP: Final[ErrorShape] = _LlamaCpp()
COHERE: Final[ErrorShape] = _Cohere()
TEXT_GENERATION: Final[ErrorShape] = _HuggingFace("text_generation", "validation", "overloaded", "generation")
TEXT_EMBEDDINGS: Final[ErrorShape] = _HuggingFace("text_embeddings", "Validation", "Overloaded", "Backend")
_BY_PATH: Final = (
    (_OLLAMA, OLLAMA),
    (_LLAMA_CPP, LLAMA_CPP),
    (_COHERE, COHERE),
    (_TEXT_GENERATION, TEXT_GENERATION),
    (_TEXT_EMBEDDINGS, TEXT_EMBEDDINGS),
)
SCOPE_SHAPE: Final = "stentor.error_shape"
"""In the scope of a request whose body shows another protocol than its path."""
SHAPES: Final = (OPENAI, ANTHROPIC, *(shape for _, shape in _BY_PATH))


def shape_of(path: str, headers: Iterable[tuple[bytes, bytes]]) -> ErrorShape:
    """``path`` as the routes name it, without ``--root-path``."""
    if is_anthropic_request(path, headers):
        return ANTHROPIC
    return next((shape for pattern, shape in _BY_PATH if pattern.match(path)), OPENAI)


def is_anthropic_request(path: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the client uses Anthropic's protocol. Both protocols have ``/v1/models`` and ``/v1/files``; there
    Anthropic's version header decides, which all its clients send."""
    if _MESSAGES.match(path):
        return True
    return _SHARED.match(path) is not None and any(name == b"anthropic-version" for name, _ in headers)
