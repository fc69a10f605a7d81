"""The error object that every status carries, and the kind of error that a status is."""

from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

ErrorKind = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "rate_limit_error",
    "timeout_error",
    "api_error",
    "overloaded_error",
]

_KINDS: Final[dict[int, ErrorKind]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


THREAD_UNSUPPORTED: Final = "thread_unsupported_request"
CODES: Final = frozenset({THREAD_UNSUPPORTED})
"""Codes of Anthropic's in responses. The SDK reacts to this one by sending whole conversations, as before."""


class ErrorDetails(msgspec.Struct, frozen=True):
    error_code: str


class MessageError(msgspec.Struct, frozen=True):
    type: ErrorKind
    message: str
    details: ErrorDetails | UnsetType = UNSET


class MessageErrorResponse(msgspec.Struct, frozen=True):
    error: MessageError
    request_id: str | None
    type: Literal["error"] = "error"


def kind_of(status: int) -> ErrorKind:
    return _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
