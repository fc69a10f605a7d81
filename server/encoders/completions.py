"""Deltas as text completions: the whole response, and the stream of chunks.

A request may hold several prompts; choices are numbered through, ``n`` to a prompt.
"""

from dataclasses import dataclass

from msgspec import UNSET

from stentor.protocols.deltas import Delta, Finish, PromptProcessed, Text
from stentor.protocols.openai.completions import CompletionChoice, CompletionLogprobs, CompletionResponse
from stentor.protocols.openai.usage import Usage

from ..errors import error_frame, generation_error
from ..sse import DONE
from .chunks import NULL, ChunkFrame, encode
from .collect import Choice, Generation
from .logprobs import CompletionLogprobsBuilder, TokenNames, joined, prompt_logprobs


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
    silent: frozenset[int] = frozenset()
    """Tokens that add nothing to the text."""
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
        builder = CompletionLogprobsBuilder(shape.names, shape.logprobs, shape.silent)
        echoed = None
        if prompt.echo is not None:
            echoed = builder.add_prompt(prompt.echo, prompt.tokens, generation.prompt_logprobs or ())
        logprobs = builder.add(choice.tokens, choice.logprobs)
        if echoed is not None:
            logprobs = joined(echoed, logprobs)
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
            self._builders = [
                CompletionLogprobsBuilder(shape.names, shape.logprobs, shape.silent) for _ in range(shape.n)
            ]
        self._opened = False
        self.failed = False

    @classmethod
    def alone(cls, shape: CompletionShape, prompt: Prompt) -> "CompletionStream":
        """For a request with one prompt."""
        return cls(shape, shape.frame(), prompt, Tally(len(prompt.tokens)))

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
                    frames.append(self._rich(delta))
            elif type(delta) is Finish:
                if delta.reason not in ("stop", "length"):
                    self.failed = True
                    frames.append(error_frame(generation_error(delta)))
                    break
                frames.append(self._finish(delta))
            elif type(delta) is PromptProcessed:
                self._tally.cached += delta.cached_tokens
                frames.append(self._open(delta))
        return b"".join(frames)

    def end(self) -> bytes:
        """What follows the last choice's end."""
        return self._frame.last(self._tally.usage()) + DONE

    def _open(self, delta: PromptProcessed) -> bytes:
        """The chunks that come before any generated text: the prompt's text and ids, where asked for."""
        prompt, shape = self._prompt, self._shape
        if prompt.echo is None and not shape.token_ids:
            return b""
        ids = b',"prompt_token_ids":' + encode(prompt.tokens) if shape.token_ids else b""
        text = prompt.echo or ""
        frames = []
        for index in range(shape.n):
            logprobs = None
            if self._builders and prompt.echo is not None:
                logprobs = self._builders[index].add_prompt(text, prompt.tokens, delta.logprobs or ())
            frames.append(self._chunk(index, text, logprobs, ids))
        return b"".join(frames)

    def _rich(self, delta: Text) -> bytes:
        """A chunk with whatever else was asked for: log-probabilities, token ids, usage so far."""
        logprobs = None
        if self._builders and delta.tokens:
            logprobs = self._builders[delta.index].add(delta.tokens, delta.logprobs or ())
        ids = b',"token_ids":' + encode(delta.tokens) if self._shape.token_ids else b""
        return self._chunk(delta.index, delta.text, logprobs, ids)

    def _chunk(self, index: int, text: str, logprobs: CompletionLogprobs | None, extra: bytes) -> bytes:
        shown = NULL if logprobs is None else encode(logprobs)
        body = encode(text) + b',"logprobs":' + shown + b',"finish_reason":null' + extra + b"}"
        return self._heads[index] + body + self._frame.tail(self._tally.usage())

    def _finish(self, delta: Finish) -> bytes:
        reason = encode("length" if delta.reason == "length" else "stop")
        body = b'"","logprobs":null,"finish_reason":' + reason + b',"stop_reason":' + encode(delta.stop_reason) + b"}"
        return self._heads[delta.index] + body + self._frame.tail(self._tally.usage())


class MergedCompletionStream:
    """The same for the generations of several prompts, whose batches come with the number of their prompt."""

    def __init__(self, shape: CompletionShape, prompts: list[Prompt]) -> None:
        frame = shape.frame()
        tally = Tally(sum(len(prompt.tokens) for prompt in prompts))
        self._streams = [CompletionStream(shape, frame, prompt, tally) for prompt in prompts]
        self.failed = False

    def encode(self, batches: list[tuple[int, list[Delta]]]) -> bytes:
        frames = []
        for number, batch in batches:
            stream = self._streams[number]
            frames.append(stream.encode(batch))
            if stream.failed:
                self.failed = True
                break
        return b"".join(frames)

    def end(self) -> bytes:
        return self._streams[0].end()
