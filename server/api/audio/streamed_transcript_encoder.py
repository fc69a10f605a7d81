"""A transcript of a model that knows no times: as JSON, as text, or as events."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import UNSET, UnsetType

from stentor.protocols.common.encoding import encode
from stentor.protocols.openai.transcription import (
    DiarizedTranscription,
    DurationUsage,
    Logprob,
    SpokenSegment,
    Transcription,
)

from ...asr.streaming import Piece
from ...http.sse import frame_of
from .transcript_events import TokenCounts, TranscriptEvents

if TYPE_CHECKING:
    from ...asr.turns import Turn


def whole_json(pieces: Sequence[Piece], seconds: float, *, logprobs: bool) -> bytes:
    usage = DurationUsage(math.ceil(seconds))
    return encode(Transcription(_text_of(pieces), usage, _logprobs(pieces) if logprobs else UNSET))


def whole_text(pieces: Sequence[Piece]) -> bytes:
    return (_text_of(pieces) + "\n").encode()


def whole_diarized(pieces: Sequence[Piece], seconds: float) -> bytes:
    segments = _spoken([turn for piece in pieces for turn in piece.turns])
    usage = DurationUsage(math.ceil(seconds))
    return encode(DiarizedTranscription("transcribe", seconds, _text_of(pieces), segments, usage))


class PieceStream:
    """Encodes each piece as an event at once."""

    def __init__(
        self,
        events: TranscriptEvents,
        counted: Callable[[], tuple[int, int]],
        *,
        logprobs: bool,
        diarized: bool = False,
    ) -> None:
        """``counted`` are the tokens that the model has read so far: of audio, and text. ``diarized``: turns of
        speakers are events too."""
        self._events = events
        self._counted = counted
        self._logprobs = logprobs
        self._diarized = diarized
        self._turns = 0
        self._written = 0
        self._pieces: list[Piece] = []
        self.failed: Final = False

    def encode(self, batch: Piece) -> bytes:
        """The frames of one piece."""
        self._pieces.append(batch)
        self._written += len(batch.tokens)
        delta = self._events.delta(batch.text, self._counts(), self._of([batch])) if batch.text else b""
        if not self._diarized:
            return delta
        turns = _spoken(batch.turns, self._turns)
        self._turns += len(turns)
        return delta + b"".join(map(frame_of, turns))

    def end(self) -> bytes:
        return self._events.end(_text_of(self._pieces), self._counts(), self._of(self._pieces))

    def _counts(self) -> TokenCounts:
        return TokenCounts(*self._counted(), self._written)

    def _of(self, pieces: Sequence[Piece]) -> list[Logprob] | UnsetType:
        return _logprobs(pieces) if self._logprobs else UNSET


def _spoken(turns: "Sequence[Turn]", first: int = 0) -> list[SpokenSegment]:
    from ...asr.turns import label  # late: few models tell speakers apart

    return [
        SpokenSegment(f"seg_{number}", label(turn.speaker), round(turn.start, 3), round(turn.end, 3), turn.text)
        for number, turn in enumerate(turns, first)
    ]


def _text_of(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def _logprobs(pieces: Sequence[Piece]) -> list[Logprob]:
    return [
        Logprob(said.bytes.decode(errors="replace"), said.logprob or 0.0, list(said.bytes))
        for piece in pieces
        for said in piece.tokens
    ]
