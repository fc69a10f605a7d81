"""Events of a streamed transcript: each is OpenAI's and vLLM's at once, as ``stream`` does not tell which."""

import time
from typing import Literal, Self

import msgspec
from msgspec import UNSET, UnsetType

from stentor.protocols.openai.transcription import (
    ChunkChoice,
    ChunkDelta,
    InputTokens,
    Logprob,
    TextDelta,
    TextDone,
    TokenUsage,
    TranscriptionForm,
    TranslationForm,
    UsageChunk,
)
from stentor.protocols.openai.usage import Usage

from ...http.sse import DONE, frame_of

ChunkName = Literal["transcription.chunk", "translation.chunk"]


class TokenCounts(msgspec.Struct, frozen=True):
    """Tokens that the model has read and written so far."""

    audio: int
    text: int
    written: int

    def usage(self) -> Usage:
        return Usage.of(self.audio + self.text, self.written, 0)


class TranscriptEvents(msgspec.Struct, frozen=True):
    """Frames of one stream."""

    id: str
    model: str
    object: ChunkName
    include_usage: bool = False
    """Counts tokens in a last chunk of vLLM's."""
    continuous_usage: bool = False
    """Counts them in every delta."""
    created: int = msgspec.field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(cls, form: TranslationForm, model: str, request_id: str, *, force_usage: bool) -> Self:
        """``model``: the name that the response has; ``force_usage``: the operator wants usage in every stream."""
        transcribes = isinstance(form, TranscriptionForm)
        include = form.stream_include_usage or force_usage
        return cls(
            f"transcribe-{request_id}" if transcribes else f"translate-{request_id}",
            model,
            "transcription.chunk" if transcribes else "translation.chunk",
            include,
            include and form.stream_continuous_usage_stats,
        )

    def delta(self, text: str, counts: TokenCounts, logprobs: list[Logprob] | UnsetType) -> bytes:
        return frame_of(
            TextDelta(
                id=self.id,
                object=self.object,
                created=self.created,
                model=self.model,
                choices=[ChunkChoice(ChunkDelta(text))],
                delta=text,
                logprobs=logprobs,
                usage=counts.usage() if self.continuous_usage else UNSET,
            )
        )

    def end(self, text: str, counts: TokenCounts, logprobs: list[Logprob] | UnsetType) -> bytes:
        """``text``: the whole transcript."""
        read = counts.audio + counts.text
        done = TextDone(
            id=self.id,
            object=self.object,
            created=self.created,
            model=self.model,
            choices=[ChunkChoice(ChunkDelta(""), "stop")],
            text=text,
            usage=TokenUsage(read, counts.written, read + counts.written, InputTokens(counts.audio, counts.text)),
            logprobs=logprobs,
        )
        return frame_of(done) + self._usage(counts) + DONE

    def _usage(self, counts: TokenCounts) -> bytes:
        if not self.include_usage:
            return b""
        return frame_of(
            UsageChunk(
                id=self.id,
                object=self.object,
                created=self.created,
                model=self.model,
                choices=[],
                usage=counts.usage(),
            )
        )
