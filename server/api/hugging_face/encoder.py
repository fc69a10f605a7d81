"""Deltas as answers of Text Generation Inference: the whole one, and the stream of its events."""

from collections.abc import AsyncIterable
from dataclasses import dataclass, field

from msgspec import UNSET

from stentor.protocols.hugging_face.objects import (
    FinishReason,
    GenerateDetails,
    GeneratedToken,
    GenerateResponse,
    StreamDetails,
    StreamResponse,
)
from stentor.protocols.ipc.deltas import Delta, Finish, Text

from ...common.errors import generation_error
from ...generation.logprobs import TokenNames, finite
from ...http.error_responses import error_frame
from ...http.error_shapes import TEXT_GENERATION
from ...http.sse import frame_of

_NOTHING = GeneratedToken(0, "", 0.0, True)


@dataclass(frozen=True)
class GenerationShape:
    """Facts about an answer before it is generated."""

    prompt_tokens: int
    names: TokenNames
    special: frozenset[int]
    before: str = ""
    """The prompt, where the answer begins with it."""
    seed: int | None = None
    details: bool = False


@dataclass
class _Progress:
    """Progress of one answer."""

    texts: list[str] = field(default_factory=list)
    count: int = 0
    finish: Finish | None = None

    def take(self, delta: Delta) -> Text | None:
        """The client's tokens of a delta."""
        if isinstance(delta, Finish):
            self.finish = delta
        if not isinstance(delta, Text):
            return None
        self.count += len(delta.tokens)
        self.texts.append(delta.text)
        return delta

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def reason(self) -> FinishReason:
        """Raises as :func:`...common.errors.generation_error` says."""
        finish = self.finish
        if finish is None or finish.reason not in ("stop", "length"):
            raise generation_error(finish)
        if finish.reason == "length":
            return "length"
        return "stop_sequence" if isinstance(finish.stop_reason, str) else "eos_token"


async def whole_generation(shape: GenerationShape, batches: AsyncIterable[list[Delta]]) -> GenerateResponse:
    """Reads ``batches`` to their end. Raises as :func:`...common.errors.generation_error` says."""
    progress = _Progress()
    tokens: list[GeneratedToken] = []
    async for batch in batches:
        for delta in batch:
            text = progress.take(delta)
            if text is not None and shape.details:
                tokens += [
                    GeneratedToken(
                        entry.token, shape.names.name(entry.token), finite(entry.logprob), entry.token in shape.special
                    )
                    for entry in text.logprobs or ()
                ]
    reason = progress.reason()
    told = GenerateDetails(reason, progress.count, shape.seed, [], tokens)
    return GenerateResponse(shape.before + progress.text, told if shape.details else UNSET)


class GenerationStream:
    """Encodes the batches of one generation as events; one object per response. An event has the text that became final
    with its last token, so that all texts together are the answer.

    After ``failed`` has become true nothing more may be sent.
    """

    def __init__(self, shape: GenerationShape) -> None:
        self._shape = shape
        self._progress = _Progress()
        self._held: GeneratedToken | None = None
        """The last token is sent with the final event."""
        self.failed = False

    def encode(self, batch: list[Delta]) -> bytes:
        """The events of one batch, joined; empty while everything is held back."""
        frames = []
        for delta in batch:
            text = self._progress.take(delta)
            if text is not None and text.tokens:
                frames.append(self._release())
                self._held = self._token(text)
            elif text is not None and text.text:
                frames.append(self._release())
                self._held = GeneratedToken(_NOTHING.id, text.text, _NOTHING.logprob, False)
            elif type(delta) is Finish and delta.reason not in ("stop", "length"):
                self.failed = True
                frames.append(error_frame(generation_error(delta), TEXT_GENERATION))
                break
        return b"".join(frames)

    def end(self) -> bytes:
        """The event that follows the last delta."""
        progress, shape = self._progress, self._shape
        details = StreamDetails(progress.reason(), progress.count, shape.seed, shape.prompt_tokens)
        text = shape.before + progress.text
        return frame_of(StreamResponse(progress.count, self._held or _NOTHING, text, details))

    def _release(self) -> bytes:
        held = self._held
        return b"" if held is None else frame_of(StreamResponse(self._progress.count - 1, held))

    def _token(self, text: Text) -> GeneratedToken:
        entry = text.logprobs[-1] if text.logprobs else None
        token = text.tokens[-1]
        special = token in self._shape.special and not text.text
        return GeneratedToken(token, text.text, 0.0 if entry is None else finite(entry.logprob), special)
