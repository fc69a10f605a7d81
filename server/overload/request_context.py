"""State of one live request: its queue slot, its deadline, and what its head says of the engine."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import anyio

from stentor.engine.client.replicas import EngineChoice
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.common.limits import INT64_MAX, INT64_MIN

from ..common.errors import CutShort, DeadlineExceeded
from .queue_slots import QueueSlot

TIMEOUT_HEADER: Final = "x-request-timeout"
RANK_HEADER: Final = "x-data-parallel-rank"
SESSION_HEADER: Final = "x-session-id"
PRIORITY_HEADER: Final = "x-vllm-priority"


class RequestContext:
    """One live request. Its deadline covers body, tokenizer, queue, prefill and decode."""

    def __init__(self, queue_slot: QueueSlot, timeout: float, priority: int | None = None) -> None:
        """``timeout`` in seconds from now; 0 is none. ``priority``: as :func:`priority_of` found it."""
        self.queue_slot: Final = queue_slot
        self.arrival: Final = time.monotonic()
        self._deadline = anyio.current_time() + timeout if timeout else math.inf
        self._timeout = timeout
        self._cut: CutShort | None = None
        self.ended_by: CutShort | None = None
        """Why it ended before it was done, once it has."""
        self._priority = priority
        self.parts: Final[dict[str, Callable[[], None]]] = {}
        """How each of its prompts that has an id of its own is ended, which leaves the others."""
        self._scope: anyio.CancelScope | None = None

    def priority(self, own: int) -> int:
        """The priority in the request's head, which a gateway sets, or else its ``own`` in the body."""
        return own if self._priority is None else self._priority

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """Cancels the block at the deadline, or when :meth:`cut_short` is called; then raises CutShort.

        One at a time. Nothing is raised if the block completed all the same.
        """
        with anyio.CancelScope(deadline=self._deadline) as self._scope:
            if self._cut is not None:
                self._scope.cancel()
            yield
        ended, self._scope = self._scope, None
        if ended.cancelled_caught:
            self.ended_by = self._cut or DeadlineExceeded(self._timeout)
            raise self.ended_by

    def cut_short(self, why: CutShort) -> None:
        """Ends the request with an error as soon as may be. May be called again."""
        if self._cut is None:
            self._cut = why
            if self._scope is not None:
                self._scope.cancel()


def timeout_of(headers: Sequence[tuple[bytes, bytes]], most: float) -> float:
    """Time limit of a request in seconds, 0 for none: its header's, but at most ``most``.

    Raises BadRequest for a header that is no number of seconds above 0.
    """
    given = [value for name, value in headers if name == TIMEOUT_HEADER.encode()]
    if not given:
        return most
    try:
        (text,) = given
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise BadRequest(
            f"The header `{TIMEOUT_HEADER}` must be given once, as a number of seconds above 0.", TIMEOUT_HEADER
        )
    return min(seconds, most) if most else seconds


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


def priority_of(headers: Sequence[tuple[bytes, bytes]]) -> int | None:
    """The priority in the head of a request. Raises BadRequest for a header that is repeated, or no such number."""
    text = _only(headers, PRIORITY_HEADER)
    if text is None:
        return None
    digits = text.removeprefix(b"-")
    if not (digits.isdigit() and len(digits) < 20 and INT64_MIN <= int(text) <= INT64_MAX):
        raise BadRequest(
            f"The header `{PRIORITY_HEADER}` must be an integer from {INT64_MIN} to {INT64_MAX}.", PRIORITY_HEADER
        )
    return int(text)


def _only(headers: Sequence[tuple[bytes, bytes]], header: str) -> bytes | None:
    given = [value for name, value in headers if name == header.encode()]
    if len(given) > 1:
        raise BadRequest(f"The header `{header}` must be given once.", header)
    return given[0] if given else None
