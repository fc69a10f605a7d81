"""One request on the engine, seen as typed deltas: engine events in, text, tokens and endings out."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, Protocol, Self, assert_never

import msgspec

from stentor.protocols.actors import ChoiceTokens, Finished, PromptDone, Thinking
from stentor.protocols.deltas import Delta, Finish, PromptProcessed, Text
from stentor.protocols.sampling import SamplingParams
from stentor.protocols.steps import TokenLogprobs

from ..parsing.interface import Parser
from .detokenizer import PROMPT_TAIL, Detokenizer
from .parsed import Parsed
from .pool import TokenizerPool
from .stop import StopMatcher, compiled_stops

EngineEvent = PromptDone | ChoiceTokens | Finished
Observer = Callable[[list[Delta]], None]


class EventStream(Protocol):
    """The engine's events of one request, in order; see :class:`stentor.engine.client.RequestStream`."""

    def __aiter__(self) -> AsyncIterator[list[EngineEvent]]: ...

    def __anext__(self) -> Awaitable[list[EngineEvent]]: ...

    def abort(self, index: int = -1) -> None:
        """Ends one choice, or with -1 the whole request. May be called at any time, and again."""


class Submitter(Protocol):
    """What takes requests to an engine; see :class:`stentor.engine.client.EngineClient`."""

    def submit(
        self,
        prompt: list[int],
        params: SamplingParams,
        seeds: list[int],
        *,
        priority: int = 0,
        salt: str = "",
        name: str = "",
        grammar: str = "",
        thinking: Thinking | None = None,
        resumed: list[list[int]] | None = None,
    ) -> EventStream:
        """Raises :class:`stentor.engine.client.EngineUnavailable` when the engine takes no requests."""


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and how to continue it, ``len(seeds)`` times."""

    prompt: list[int]
    params: SamplingParams
    seeds: list[int]
    """Unsigned 64 bits, one per choice."""
    stop: tuple[str, ...] = ()
    """Stop strings; none may be empty."""
    include_stop: bool = False
    """The stop string or stop token that ends a choice is part of its text."""
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    parser: Callable[[], Parser] | None = None
    """Makes the parser of one choice; None leaves the text as it is."""
    visible: frozenset[str] = frozenset()
    """Special tokens that the parser must see, whatever else is skipped; one of a few sets that the model has."""
    grammar: str = ""
    """What the text of each choice must match, in llguidance's dialect of Lark; empty: anything."""
    thinking: Thinking | None = None
    """How long the model may think; None: as long as it likes."""
    priority: int = 0
    salt: str = ""
    name: str = ""
    """The request's id, for logs."""


class _Choice:
    """The text of one choice: detokenised, watched for stop strings, and taken apart where there is a parser."""

    __slots__ = ("_detokenizer", "_ends", "_matcher", "_min_tokens", "_parsed", "_produced", "index", "open")

    def __init__(
        self,
        index: int,
        detokenizer: Detokenizer,
        matcher: StopMatcher | None,
        ends: frozenset[int],
        min_tokens: int,
        parsed: Parsed | None,
    ) -> None:
        self.index = index
        self.open = True
        self._detokenizer = detokenizer
        self._matcher = matcher
        self._ends = ends
        """Tokens that end the choice and are no part of its text."""
        self._min_tokens = min_tokens
        self._produced = 0
        self._parsed = parsed

    @property
    def matched(self) -> str | None:
        return None if self._matcher is None else self._matcher.matched

    def push(self, tokens: list[int], logprobs: list[TokenLogprobs] | None, deltas: list[Delta]) -> None:
        """Takes the next tokens, up to the one that completes a stop string."""
        if self._parsed is not None:
            self._push_parsed(tokens, logprobs, self._parsed, deltas)
            return
        if self._matcher is not None:
            deltas.append(self._push_watched(tokens, logprobs, self._matcher))
            return
        self._produced += len(tokens)
        shown: Sequence[int] = tokens
        if tokens and tokens[-1] in self._ends and self._produced > self._min_tokens:
            shown = tokens[:-1]
        deltas.append(Text(self.index, self._detokenizer.push(shown), tokens, logprobs))

    def _push_watched(self, tokens: list[int], logprobs: list[TokenLogprobs] | None, matcher: StopMatcher) -> Text:
        text = ""
        for place, token in enumerate(tokens):
            self._produced += 1
            late_enough = not self._min_tokens or self._produced > self._min_tokens
            if token in self._ends and late_enough:
                continue
            text += matcher.push(self._detokenizer.push((token,)), armed=late_enough)
            if matcher.matched is not None:
                taken = place + 1
                return Text(self.index, text, tokens[:taken], None if logprobs is None else logprobs[:taken])
        return Text(self.index, text, tokens, logprobs)

    def _push_parsed(
        self, tokens: list[int], logprobs: list[TokenLogprobs] | None, parsed: Parsed, deltas: list[Delta]
    ) -> None:
        if len(tokens) == 1:
            parsed.push_alone(tokens, logprobs, self._read(tokens[0]), deltas)
        else:
            writer = parsed.writer(deltas)
            for place, token in enumerate(tokens):
                parsed.push(token, None if logprobs is None else logprobs[place], self._read(token), writer)
                if self.matched is not None:
                    break
            parsed.end(writer)
        if self.matched is not None:
            parsed.finish("", deltas)

    def _read(self, token: int) -> str:
        """The text that one token made final, as :meth:`_push_watched` has it for several."""
        self._produced += 1
        late_enough = not self._min_tokens or self._produced > self._min_tokens
        if token in self._ends and late_enough:
            return ""
        text = self._detokenizer.push((token,))
        return text if self._matcher is None else self._matcher.push(text, armed=late_enough)

    def finish(self, deltas: list[Delta]) -> None:
        """The text still held back, once no more tokens come."""
        text = self._detokenizer.finish()
        if self._matcher is not None:
            armed = not self._min_tokens or self._produced > self._min_tokens
            text = self._matcher.push(text, armed=armed) + self._matcher.finish()
        if self._parsed is not None:
            self._parsed.finish(text, deltas)
        elif text:
            self._append(text, deltas)

    def _append(self, rest: str, deltas: list[Delta]) -> None:
        """Adds text to the choice's delta of this batch, or in a new one without tokens."""
        for place in range(len(deltas) - 1, -1, -1):
            delta = deltas[place]
            if isinstance(delta, Text) and delta.index == self.index:
                deltas[place] = Text(self.index, delta.text + rest, delta.tokens, delta.logprobs)
                return
        deltas.append(Text(self.index, rest, [], None))


class Generation:
    """The deltas of one request: an async iterator of one batch per engine batch.

    Ends once every choice has had its :class:`~stentor.protocols.deltas.Finish`. Use it under
    ``contextlib.aclosing``: closing it, or cancelling an iteration, aborts what still runs.
    """

    __slots__ = ("_choices", "_observe", "_open", "_stream")

    def __init__(
        self, client: Submitter, pool: TokenizerPool, request: GenerationRequest, observe: Observer | None
    ) -> None:
        params = request.params
        stops = compiled_stops(request.stop) if request.stop else None
        ends = frozenset[int]()
        if not request.include_stop:
            ends = frozenset((*params.eos_token_ids, *params.stop_token_ids))
        make_parser, visible = request.parser, request.visible
        if make_parser is None:
            visible = frozenset()
        elif visible:
            ends -= pool.detokenizers.ids(visible)  # what ends a call is not less of a marker for ending all
        self._choices: Final = [
            _Choice(
                index,
                pool.detokenizers.new(
                    skip_special_tokens=request.skip_special_tokens,
                    spaces_between_special_tokens=request.spaces_between_special_tokens,
                    prompt_tail=request.prompt[-PROMPT_TAIL:],
                    visible=visible,
                ),
                None if stops is None else StopMatcher(stops, include=request.include_stop),
                ends,
                params.min_tokens,
                None if make_parser is None else Parsed(index, make_parser()),
            )
            for index in range(len(request.seeds))
        ]
        self._open = len(self._choices)
        self._observe = observe
        self._stream: Final = client.submit(
            request.prompt,
            params,
            request.seeds,
            priority=request.priority,
            salt=request.salt,
            name=request.name,
            grammar=request.grammar,
            thinking=request.thinking,
        )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Delta]:
        while self._open:
            try:
                deltas = self._take(await self._stream.__anext__())
            except StopAsyncIteration:
                deltas = self._end_unfinished()
            except BaseException:
                await self.aclose()
                raise
            if deltas:
                if self._observe is not None:
                    self._observe(deltas)
                return deltas
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Aborts whatever still runs; may be called at any time, and again."""
        if self._open:
            self._open = 0
            self._stream.abort()

    def _take(self, events: list[EngineEvent]) -> list[Delta]:
        deltas: list[Delta] = []
        for event in events:
            match event:
                case ChoiceTokens(index=index):
                    choice = self._choices[index]
                    if not choice.open:
                        continue
                    choice.push(event.tokens, event.logprobs, deltas)
                    if choice.matched is not None:
                        self._stream.abort(index)
                        self._close(choice, deltas, Finish(index, "stop", choice.matched, None))
                case Finished(index=index):
                    choice = self._choices[index]
                    if choice.open:
                        self._finish(choice, event, deltas)
                case PromptDone():
                    deltas.append(
                        PromptProcessed(event.cached_tokens, event.logprobs, event.queue_seconds, event.prefill_seconds)
                    )
                case other:
                    assert_never(other)
        return deltas

    def _finish(self, choice: _Choice, event: Finished, deltas: list[Delta]) -> None:
        choice.finish(deltas)
        if choice.matched is not None:
            end = Finish(choice.index, "stop", choice.matched, None)
        else:
            end = Finish(choice.index, event.reason, event.stop_token, event.message)
        self._close(choice, deltas, end)

    def _close(self, choice: _Choice, deltas: list[Delta], end: Finish) -> None:
        choice.open = False
        self._open -= 1
        deltas.append(end)

    def _end_unfinished(self) -> list[Delta]:
        """A stream that ended early still owes every open choice its terminal delta."""
        deltas: list[Delta] = []
        for choice in self._choices:
            if choice.open:
                why = "The engine ended the request without a result; try again."
                self._finish(choice, Finished(-1, choice.index, "error", None, why), deltas)
        return deltas


def generate(
    client: Submitter, pool: TokenizerPool, request: GenerationRequest, observe: Observer | None = None
) -> Generation:
    """Submits a request and returns its deltas, one batch per engine batch; ``observe`` sees each before it is read.

    Raises :class:`stentor.engine.client.EngineUnavailable` at once when the engine takes no
    requests, and ``ValueError`` for an empty stop string. What is returned must be closed.
    """
    return Generation(client, pool, request, observe)
