"""A transcript of a model that knows no times: as JSON, as text, or as events."""

import math
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import UNSET, UnsetType

from stentor.protocols.common.encoding import encode
from stentor.protocols.openai.transcription import (
    DurationUsage,
    InputTokens,
    Logprob,
    TextDelta,
    TextDone,
    TokenUsage,
    Transcription,
)

from ...asr.streaming import Piece
from ...http.sse import DONE, frame_of


def whole_json(pieces: Sequence[Piece], seconds: float, *, logprobs: bool) -> bytes:
    usage = DurationUsage(math.ceil(seconds))
    return encode(Transcription(_text_of(pieces), usage, _logprobs(pieces) if logprobs else UNSET))


def whole_text(pieces: Sequence[Piece]) -> bytes:
    return (_text_of(pieces) + "\n").encode()


class PieceStream:
    """Encodes each piece as an event at once."""

    def __init__(self, counted: Callable[[], tuple[int, int]], *, logprobs: bool) -> None:
        """``counted`` are the tokens that the model has read at the end: of audio, and text."""
        self._counted = counted
        self._logprobs = logprobs
        self._pieces: list[Piece] = []
        self.failed: Final = False

    def encode(self, batch: Piece) -> bytes:
        """The frame of one piece."""
        self._pieces.append(batch)
        return frame_of(TextDelta(batch.text, self._of([batch])))

    def end(self) -> bytes:
        (audio, text), written = self._counted(), sum(len(piece.tokens) for piece in self._pieces)
        read = audio + text
        usage = TokenUsage(read, written, read + written, InputTokens(audio, text))
        return frame_of(TextDone(_text_of(self._pieces), usage, self._of(self._pieces))) + DONE

    def _of(self, pieces: Sequence[Piece]) -> list[Logprob] | UnsetType:
        return _logprobs(pieces) if self._logprobs else UNSET


def _text_of(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def _logprobs(pieces: Sequence[Piece]) -> list[Logprob]:
    return [
        Logprob(said.bytes.decode(errors="replace"), said.logprob or 0.0, list(said.bytes))
        for piece in pieces
        for said in piece.tokens
    ]
