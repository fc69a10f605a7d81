"""Deltas as answers of Text Generation Inference: the whole one, and the stream of its events."""

from collections.abc import AsyncIterable, Iterator
from typing import Final

import msgspec
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

_NOTHING: Final = GeneratedToken(0, "", 0.0, True)


class GenerationShape(msgspec.Struct, frozen=True):
    """Facts about an answer before it is generated."""

    prompt_tokens: int
    names: TokenNames
    special: frozenset[int]
    before: str = ""
    """The prompt, where the answer begins with it."""
    seed: int | None = None
    details: bool = False


class _Progress(msgspec.Struct):
    """Progress of one answer."""

    texts: list[str] = msgspec.field(default_factory=list)
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
    """Encodes the batches of one generation as events, one for each token; one object per response. The event of the
    last token of a batch has the text that became final, so that all texts together are the answer.

    After ``failed`` has become true nothing more may be sent.
    """

    def __init__(self, shape: GenerationShape) -> None:
        self._shape = shape
        self._progress = _Progress()
        self._sent = 0
        self._held: GeneratedToken | None = None
        """The last token is sent with the final event."""
        self.failed = False

    def encode(self, batch: list[Delta]) -> bytes:
        """The events of one batch, joined; empty while everything is held back."""
        frames: list[bytes] = []
        for delta in batch:
            text = self._progress.take(delta)
            if text is not None:
                frames += map(self._follow, self._tokens(text))
                self._add(text.text)
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

    def _tokens(self, text: Text) -> Iterator[GeneratedToken]:
        """Without their texts."""
        for place, token in enumerate(text.tokens):
            logprob = finite(text.logprobs[place].logprob) if text.logprobs else 0.0
            yield GeneratedToken(token, "", logprob, token in self._shape.special)

    def _follow(self, token: GeneratedToken) -> bytes:
        """The event of the token before ``token``."""
        held, self._held = self._held, token
        if held is None:
            return b""
        self._sent += 1
        return frame_of(StreamResponse(self._sent, held))

    def _add(self, text: str) -> None:
        """To the last token, which is then none that clients leave out of the text."""
        if text:
            held = self._held or _NOTHING
            self._held = msgspec.structs.replace(held, text=held.text + text, special=False)
