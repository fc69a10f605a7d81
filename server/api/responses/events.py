"""Events of the Responses API, as JSON which begins with its ``type``, and as server-sent events."""

from collections.abc import Iterable
from typing import Any

from stentor.protocols.common.encoding import encode

from ...http.error_responses import describe
from ...http.sse import DONE
from ...http.whole_answer import PIECE_BYTES
from ...observability.request import note_error
from ...state.event_log import kind_of


def frame(event: bytes) -> bytes:
    """The server-sent event."""
    return b"event: " + kind_of(event) + b"\ndata: " + event + b"\n\n"


class EventWriter:
    """Numbers the events of one response, and collects them until they are taken."""

    def __init__(self) -> None:
        self._sequence = 0
        self._events: list[bytes] = []
        self._delta_head = b""

    def emit(self, kind: str, **fields: Any) -> None:
        self._events.append(encode({"type": kind, **fields, "sequence_number": self._sequence}))
        self._sequence += 1

    def begin_deltas(self, kind: str, **fields: Any) -> None:
        """The common prefix of later :meth:`emit_delta` events, encoded once."""
        self._delta_head = encode({"type": kind, **fields})[:-1] + b',"delta":'

    def emit_delta(self, text: str, more: bytes = b"") -> None:
        """``more`` are further fields, in JSON, each behind a comma."""
        end = b',"sequence_number":%d}' % self._sequence
        self._events.append(self._delta_head + encode(text) + more + end)
        self._sequence += 1

    def taken(self) -> list[bytes]:
        events, self._events = self._events, []
        return events


class ResponseFrames:
    """Encodes events as frames; an error before the first frame gets a status of its own."""

    failed = False

    def __init__(self, first: int = 0) -> None:
        """``first``: the sequence number of the event that comes first."""
        self._next = first

    def encode(self, batch: list[bytes]) -> bytes | Iterable[bytes]:
        self._next += len(batch)
        frames = map(frame, batch)
        return frames if sum(map(len, batch)) > PIECE_BYTES else b"".join(frames)

    def error(self, error: Exception) -> bytes:
        """The last event of a stream whose response has not ended."""
        body = describe(error)[1]
        note_error(body.code or body.type)
        fields = {"code": body.code, "message": body.message, "param": body.param, "sequence_number": self._next}
        return frame(encode({"type": "error", **fields}))

    def end(self) -> bytes:
        return DONE
