"""The error object of every status, and the exception for a client's mistakes."""

import msgspec
from msgspec import UNSET, UnsetType


class ErrorBody(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    """The field at fault, as a path: ``temperature``, ``messages[0].content``."""
    code: str | None
    n_prompt_tokens: int | UnsetType = UNSET
    """Of a prompt that is too long: its tokens, at least; llama.cpp's clients read this and the next."""
    n_ctx: int | UnsetType = UNSET
    """The tokens that it may have, or with its output."""


class ErrorResponse(msgspec.Struct, frozen=True):
    error: ErrorBody


class BadRequest(Exception):
    """The request cannot be served.

    ``param`` names the field at fault, ``code`` is OpenAI's machine-readable code if there is one, ``kind`` the type of
    error. ``lengths`` are the tokens of a prompt that is too long, and how many there may be.
    """

    def __init__(
        self,
        message: str,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        kind: str = "invalid_request_error",
        *,
        lengths: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status
        self.kind = kind
        self.lengths = lengths


def wrong(field: str, what: str, code: str | None = None) -> BadRequest:
    """The refusal of a field's value; ``what`` follows the field's name in the message: ``must be a string``."""
    return BadRequest(f"`{field}` {what}.", field, code)


def refused(field: str, why: str, code: str | None = None) -> BadRequest:
    """The refusal of a field's value; ``why`` is a sentence of its own: ``the model takes none; leave it out``."""
    return BadRequest(f"`{field}`: {why}.", field, code)


def missing(field: str) -> BadRequest:
    """The refusal of a request without ``field``."""
    return wrong(field, "is required", "missing_required_parameter")
