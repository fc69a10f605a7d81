"""Names of responses."""

from starlette.requests import Request

from ..middleware.request_id import SANE, SCOPE_KEY, new_request_id
from ..observability.request import current_record


def response_id(prefix: str, request: Request, wanted: str | None) -> str:
    """``prefix`` and the request's id; a sane ``request_id`` in the body names the request anew."""
    name_anew(request, wanted)
    named: str = request.scope.get(SCOPE_KEY) or new_request_id()
    return f"{prefix}-{named}"


def name_anew(request: Request, wanted: str | None) -> None:
    """Gives the request the id that its body wishes for, if that is sane."""
    if wanted is not None and SANE.fullmatch(wanted.encode()):
        request.scope[SCOPE_KEY] = wanted
        if (record := current_record.get()) is not None:
            record.request_id = wanted
