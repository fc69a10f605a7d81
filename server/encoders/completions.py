"""Deltas as text completions: the whole response, and the stream of chunks.

A request may hold several prompts; choices are numbered through, ``n`` to a prompt.
"""

from dataclasses import dataclass

from msgspec import UNSET

from stentor.protocols.deltas import Delta, Finish, PromptProcessed, Text
from stentor.protocols.openai.completions import CompletionChoice, CompletionLogprobs, CompletionResponse
from stentor.protocols.openai.usage import Usage
from stentor.protocols.steps import TokenLogprobs

from ..errors import GenerationFailed, error_frame
from .chunks import NULL, ChunkFrame, encode
from .collect import Choice, Generation
from .logprobs import CompletionLogprobsBuilder, TokenNames, prompt_logprobs


@dataclass(frozen=True)
class CompletionShape:
    """What the client asked its answer to hold; the same for every prompt of a request."""

    response_id: str
    created: int
    model: str
    n: int
    names: TokenNames
    logprobs: int | None = None
    """Alternatives at each position; None: no log-probabilities."""
    prompt_logprobs: int | None = None
    token_ids: bool = False
    include_usage: bool = False
    continuous_usage: bool = False

    def frame(self) -> ChunkFrame:
        return ChunkFrame.of(
            "text_completion", self.response_id, self.created, self.model, self.include_usage, self.continuous_usage
        )


@dataclass(frozen=True)
class Prompt:
    """One prompt of a request."""

    index: int
    tokens: list[int]
    echo: str | None
    """Its text, where the answer begins with it."""


@dataclass
class Tally:
    """Tokens of all prompts of a request so far."""

    prompt: int
    completion: int = 0
    cached: int = 0

    def usage(self) -> Usage:
        return Usage.of(self.prompt, self.completion, self.cached)


def completion_response(
    shape: CompletionShape, prompts: list[Prompt], generations: list[Generation]
) -> CompletionResponse:
    tally = Tally(sum(len(prompt.tokens) for prompt in prompts))
    choices = []
    for prompt, generation in zip(prompts, generations, strict=True):
        tally.completion += generation.completion_tokens
        tally.cached += generation.cached_tokens
        for index, choice in enumerate(generation.choices):
            choices.append(_choice(shape, prompt, generation, prompt.index * shape.n + index, choice))
    return CompletionResponse(shape.response_id, shape.created, shape.model, choices, tally.usage())


def _choice(
    shape: CompletionShape, prompt: Prompt, generation: Generation, index: int, choice: Choice
) -> CompletionChoice:
    finish = choice.finish
    assert finish is not None
    logprobs = None
    if shape.logprobs is not None:
        builder = CompletionLogprobsBuilder(shape.names, shape.logprobs)
        entries: list[TokenLogprobs | None] = [*choice.logprobs]
        tokens = choice.tokens
        if prompt.echo is not None:
            entries = [*(generation.prompt_logprobs or ()), *entries]
            tokens = prompt.tokens + tokens
        logprobs = builder.add(tokens, entries)
    wanted = shape.prompt_logprobs
    return CompletionChoice(
        index=index,
        text=(prompt.echo or "") + choice.text,
        logprobs=logprobs,
        finish_reason="length" if finish.reason == "length" else "stop",
        stop_reason=finish.stop_reason,
        prompt_logprobs=(
            UNSET if wanted is None else prompt_logprobs(generation.prompt_logprobs or [], shape.names, wanted)
        ),
        prompt_token_ids=prompt.tokens if shape.token_ids else UNSET,
        token_ids=choice.tokens if shape.token_ids else UNSET,
    )


class CompletionStream:
    """Turns the batches of one prompt's generation into frames.

    After ``failed`` has become true nothing more may be sent.
    """

    def __init__(self, shape: CompletionShape, frame: ChunkFrame, prompt: Prompt, tally: Tally) -> None:
        self._shape = shape
        self._frame = frame
        self._prompt = prompt
        self._tally = tally
        first = prompt.index * shape.n
        self._heads = [frame.head + b'{"index":%d,"text":' % (first + index) for index in range(shape.n)]
        self._plain = not (shape.continuous_usage or shape.token_ids or shape.logprobs is not None)
        self._plain_tail = b',"logprobs":null,"finish_reason":null}' + frame.tail(tally.usage())
        self._builders: list[CompletionLogprobsBuilder] = []
        if shape.logprobs is not None:
            self._builders = [CompletionLogprobsBuilder(shape.names, shape.logprobs) for _ in range(shape.n)]
        self._opened = False
        self.failed = False

    def encode(self, batch: list[Delta]) -> bytes:
        """The frames of one batch, joined; empty while everything is held back."""
        frames = []
        for delta in batch:
            if type(delta) is Text:
                self._tally.completion += len(delta.tokens)
                if self._plain:
                    if delta.text:
                        frames.append(self._heads[delta.index] + encode(delta.text) + self._plain_tail)
                elif delta.text or delta.tokens:
                    frames.append(self._rich(delta.index, delta.text, delta.tokens, delta.logprobs or ()))
            elif type(delta) is Finish:
                if delta.reason not in ("stop", "length"):
                    self.failed = True
                    frames.append(error_frame(GenerationFailed()))
                    break
                frames.append(self._finish(delta))
            elif type(delta) is PromptProcessed:
                self._tally.cached += delta.cached_tokens
                frames.append(self._open(delta))
        return b"".join(frames)

    def _open(self, delta: PromptProcessed) -> bytes:
        """The chunks that come before any generated text: the prompt's text and ids, where asked for."""
        prompt, shape = self._prompt, self._shape
        if prompt.echo is None and not shape.token_ids:
            return b""
        ids = b',"prompt_token_ids":' + encode(prompt.tokens) if shape.token_ids else b""
        tokens, entries = (prompt.tokens, delta.logprobs or ()) if prompt.echo is not None else ([], ())
        return b"".join(
            self._chunk(index, prompt.echo or "", self._logprobs(index, tokens, entries), ids)
            for index in range(shape.n)
        )

    def _rich(self, index: int, text: str, tokens: list[int], entries: list[TokenLogprobs] | tuple[()]) -> bytes:
        ids = b',"token_ids":' + encode(tokens) if self._shape.token_ids else b""
        return self._chunk(index, text, self._logprobs(index, tokens, entries), ids)

    def _logprobs(
        self, index: int, tokens: list[int], entries: list[TokenLogprobs] | list[TokenLogprobs | None] | tuple[()]
    ) -> CompletionLogprobs | None:
        return self._builders[index].add(tokens, entries) if self._builders and tokens else None

    def _chunk(self, index: int, text: str, logprobs: CompletionLogprobs | None, extra: bytes) -> bytes:
        shown = NULL if logprobs is None else encode(logprobs)
        body = encode(text) + b',"logprobs":' + shown + b',"finish_reason":null' + extra + b"}"
        return self._heads[index] + body + self._frame.tail(self._tally.usage())

    def _finish(self, delta: Finish) -> bytes:
        reason = encode("length" if delta.reason == "length" else "stop")
        body = b'"","logprobs":null,"finish_reason":' + reason + b',"stop_reason":' + encode(delta.stop_reason) + b"}"
        return self._heads[delta.index] + body + self._frame.tail(self._tally.usage())
