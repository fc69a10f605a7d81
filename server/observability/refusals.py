"""Why a request was turned away, where it was not for want of room: that is counted where it is decided."""

from typing import Final

from stentor.protocols.common.bounds import LIST_TOO_LONG, NUMBER_TOO_LARGE, OBJECT_TOO_LARGE, TEXT_TOO_LONG

from .request import RequestRecord

REFUSALS: Final = ("auth", "not_found", "limit", "invalid")

_LIMITS: Final = frozenset(
    {LIST_TOO_LONG, NUMBER_TOO_LARGE, OBJECT_TOO_LARGE, TEXT_TOO_LONG, "context_length_exceeded", "media_too_large"}
)


def refusal_of(record: RequestRecord) -> str | None:
    """One of :data:`REFUSALS`, or None for a request that was not refused, or not for such a reason."""
    match record.status:
        case 401 | 403:
            return "auth"
        case 404 | 405:
            return "not_found"
        case 408 | 413:
            return "limit"
        case 400 | 415 | 422:
            return "limit" if record.error in _LIMITS else "invalid"
        case _:
            return None
