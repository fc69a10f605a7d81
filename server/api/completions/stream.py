"""Deltas as the chunks of a streamed text completion.

A request may hold several prompts; choices are numbered through, ``n`` to a prompt.
"""

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from stentor.protocols.common.encoding import encode
from stentor.protocols.ipc.deltas import Delta, Finish, PromptLogprobs, PromptProcessed, Text
from stentor.protocols.ipc.steps import TokenLogprobs
from stentor.protocols.openai.completions import CompletionLogprobs
from stentor.protocols.openai.usage import Timings, Usage

from ...common.errors import generation_error
from ...generation.completion import Prompt
from ...generation.logprobs import CompletionLogprobsBuilder
from ...http.error_responses import error_frame
from ...http.sse import DONE
from ..common.answer_clock import AnswerClock
from ..common.chunks import NULL, AnswerShape, ChunkFrame


class CompletionShape(AnswerShape, frozen=True, kw_only=True):
    """Shared by all prompts of a request."""

    logprobs: int | None = None
    """Alternatives at each position; None: no log-probabilities."""
    echo_logprobs: int | None = None
    """The same of an echoed prompt."""
    silent: frozenset[int] = frozenset()
    """Tokens that add nothing to the text."""

    def builders(self, prompt: Prompt) -> list[CompletionLogprobsBuilder]:
        """One for each choice of a prompt; empty without log-probabilities."""
        if self.logprobs is None:
            return []
        before = len(prompt.echo or "")
        return [CompletionLogprobsBuilder(self.names, self.logprobs, self.silent, before) for _ in range(self.n)]


class TokenCounts(msgspec.Struct):
    """Tokens of all prompts of a request so far."""

    prompt: int
    completion: int = 0
    cached: int = 0

    def usage(self) -> Usage:
        return Usage.of(self.prompt, self.completion, self.cached)


class EchoedLogprobs:
    """The lists of an echoed prompt, as its log-probabilities come: the same for all its choices."""

    def __init__(self, shape: CompletionShape, prompt: Prompt) -> None:
        self._shape = shape
        self._prompt = prompt
        self._seen = 0
        self._builder: CompletionLogprobsBuilder | None = None

    def add(self, entries: Sequence[TokenLogprobs | None]) -> CompletionLogprobs:
        """Adds entries of its next tokens."""
        shape, prompt = self._shape, self._prompt
        if self._builder is None:  # made late: it reads every token, of a thousand prompts that begin together
            text, top = prompt.echo or "", shape.echo_logprobs or 0
            self._builder = CompletionLogprobsBuilder.of_prompt(shape.names, top, text, prompt.tokens)
        tokens = prompt.tokens[self._seen : self._seen + len(entries)]
        self._seen += len(entries)
        return self._builder.add(tokens, entries)


class CompletionStream:
    """Turns the batches of one prompt's generation into frames.

    After ``failed`` has become true nothing more may be sent.
    """

    def __init__(self, shape: CompletionShape, frame: ChunkFrame, prompt: Prompt, tally: TokenCounts) -> None:
        self._shape = shape
        self._frame = frame
        self._prompt = prompt
        self._tally = tally
        first = prompt.index * shape.n
        self._heads = [frame.head + b'{"index":%d,"text":' % (first + index) for index in range(shape.n)]
        self._plain = not (shape.continuous_usage or shape.timings or shape.token_ids or shape.logprobs is not None)
        self._plain_tail = b',"logprobs":null,"finish_reason":null}' + frame.tail(tally.usage())
        self._builders = shape.builders(prompt)
        self._echoed = EchoedLogprobs(shape, prompt) if self._builders and prompt.echo is not None else None
        self.repeats = prompt.echo is not None or shape.token_ids
        """Whether each choice begins with the prompt."""
        self._opened = False
        self._clock = AnswerClock() if shape.metrics or shape.timings else None
        self.failed = False

    @classmethod
    def alone(cls, shape: CompletionShape, prompt: Prompt) -> "CompletionStream":
        """For a request with one prompt."""
        return cls(shape, shape.frame("text_completion"), prompt, TokenCounts(len(prompt.tokens)))

    def encode(self, batch: list[Delta]) -> bytes | Iterator[bytes]:
        """The frames of one batch, joined, or one by one where each choice repeats the prompt."""
        if self._clock is not None:
            self._clock.take(batch)
        frames = self._frames(batch)
        return frames if self.repeats else b"".join(frames)

    def _frames(self, batch: list[Delta]) -> Iterator[bytes]:
        for delta in batch:
            if type(delta) is Text:
                self._tally.completion += len(delta.tokens)
                if self._plain:
                    if delta.text:
                        yield self._heads[delta.index] + encode(delta.text) + self._plain_tail
                elif delta.text or delta.tokens:
                    yield self._rich(delta)
            elif type(delta) is Finish:
                if delta.reason not in ("stop", "length"):
                    self.failed = True
                    yield error_frame(generation_error(delta))
                    break
                if self.repeats and not self._opened:  # a grammar of nothing but the end needs no prompt
                    yield from self._open(())
                yield self._finish(delta)
            elif type(delta) is PromptProcessed:
                self._tally.cached += delta.cached_tokens
                if self.repeats:
                    yield from self._open(delta.logprobs or ())
            elif type(delta) is PromptLogprobs and self._echoed is not None:
                yield from self._repeat("", self._echo(delta.logprobs))

    def end(self) -> bytes:
        """Chunks behind the end of the last choice."""
        wanted = self._clock if self._shape.metrics else None
        metrics = UNSET if wanted is None else wanted.metrics(self._tally.completion)
        return self._frame.last(self._tally.usage(), metrics) + DONE

    def _open(self, entries: Sequence[TokenLogprobs | None]) -> Iterator[bytes]:
        """Chunks before any generated text: the prompt's text and ids, if requested."""
        self._opened = True
        ids = b',"prompt_token_ids":' + encode(self._prompt.tokens) if self._shape.token_ids else b""
        return self._repeat(self._prompt.echo or "", self._echo(entries), ids)

    def _echo(self, entries: Sequence[TokenLogprobs | None]) -> CompletionLogprobs | None:
        """Log-probabilities of the prompt's next tokens."""
        return None if self._echoed is None else self._echoed.add(entries)

    def _repeat(self, text: str, logprobs: CompletionLogprobs | None, extra: bytes = b"") -> Iterator[bytes]:
        """The same chunk for each choice, encoded once."""
        body = self._body(text, logprobs, extra) + self._tail()
        for head in self._heads:
            yield head + body

    def _rich(self, delta: Text) -> bytes:
        """A chunk with further requested fields: log-probabilities, token ids, usage so far."""
        logprobs = None
        if self._builders and delta.tokens:
            logprobs = self._builders[delta.index].add(delta.tokens, delta.logprobs or ())
        ids = b',"token_ids":' + encode(delta.tokens) if self._shape.token_ids else b""
        body = self._body(delta.text, logprobs, ids)
        return self._heads[delta.index] + body + self._tail()

    def _tail(self) -> bytes:
        timings: Timings | UnsetType = UNSET
        if self._clock is not None and self._shape.timings:
            timings = self._clock.timings(self._tally.prompt, self._tally.completion)
        return self._frame.tail(self._tally.usage(), timings)

    @staticmethod
    def _body(text: str, logprobs: CompletionLogprobs | None, extra: bytes) -> bytes:
        shown = NULL if logprobs is None else encode(logprobs)
        return encode(text) + b',"logprobs":' + shown + b',"finish_reason":null' + extra + b"}"

    def _finish(self, delta: Finish) -> bytes:
        reason = encode("length" if delta.reason == "length" else "stop")
        body = b'"","logprobs":null,"finish_reason":' + reason + b',"stop_reason":' + encode(delta.stop_reason) + b"}"
        return self._heads[delta.index] + body + self._tail()


class MergedCompletionStream:
    """The same for the generations of several prompts; batches come with the number of their prompt."""

    def __init__(self, shape: CompletionShape, prompts: list[Prompt]) -> None:
        shape = replace(shape, metrics=False, timings=False)
        frame = shape.frame("text_completion")
        tally = TokenCounts(sum(len(prompt.tokens) for prompt in prompts))
        self._streams = [CompletionStream(shape, frame, prompt, tally) for prompt in prompts]
        self._repeats = any(stream.repeats for stream in self._streams)
        self.failed = False

    def encode(self, batches: list[tuple[int, list[Delta]]]) -> bytes | Iterator[bytes]:
        frames = self._frames(batches)
        return frames if self._repeats else b"".join(frames)

    def _frames(self, batches: list[tuple[int, list[Delta]]]) -> Iterator[bytes]:
        for number, batch in batches:
            stream = self._streams[number]
            frames = stream.encode(batch)
            if isinstance(frames, bytes):
                yield frames
            else:
                yield from frames
            if stream.failed:
                self.failed = True
                break

    def end(self) -> bytes:
        return self._streams[0].end()
