"""What a request says of the engine that is to serve it, where several run one model."""

from collections.abc import Sequence
from typing import Final

from stentor.engine.client.replicas import EngineChoice
from stentor.protocols.common.errors import BadRequest

RANK_HEADER: Final = "x-data-parallel-rank"
SESSION_HEADER: Final = "x-session-id"


def engine_choice_of(headers: Sequence[tuple[bytes, bytes]], engines: int) -> EngineChoice:
    """``engines``: how many run the model. Raises BadRequest for a header that is repeated, or that names none of
    them."""
    rank, session = _only(headers, RANK_HEADER), _only(headers, SESSION_HEADER)
    if rank is None:
        return EngineChoice(session=session or b"")
    if not (rank.isdigit() and len(rank) < 3 and int(rank) < engines):
        raise BadRequest(
            f"The header `{RANK_HEADER}` must be an integer from 0 to {engines - 1}, the number of an engine "
            "(`--data-parallel-size`).",
            RANK_HEADER,
        )
    return EngineChoice(int(rank), session or b"")


def _only(headers: Sequence[tuple[bytes, bytes]], header: str) -> bytes | None:
    given = [value for name, value in headers if name == header.encode()]
    if len(given) > 1:
        raise BadRequest(f"The header `{header}` must be given once.", header)
    return given[0] if given else None
