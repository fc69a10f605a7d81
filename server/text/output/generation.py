"""One request on the engine, seen as typed deltas: engine events in, text, tokens and endings out."""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol, Self, assert_never

import msgspec

from stentor.engine.client.request import EngineRequest
from stentor.protocols.ipc.actors import EngineEvent, EngineReady, Finished, PromptDone, PromptPart, SequenceTokens
from stentor.protocols.ipc.deltas import Delta, Finish, PromptLogprobs, PromptProcessed
from stentor.protocols.openai.beams import Beams
from stentor.protocols.openai.sampling import RepetitionDetection

from ...common.loop_turns import SLICE_ENTRIES, LoopTurns
from ...parsing.interface import Parser
from ..pool import TokenizerPool
from ..tokenizers.detokenizer import PROMPT_TAIL
from .choice import OutputChoice
from .parsed import Parsed
from .slices import entries, slices_of
from .stop import StopMatcher, compiled_stops
from .stop_patterns import Matcher, PatternMatcher, compiled_patterns

if TYPE_CHECKING:
    from .repetition import RepetitionDetector

DeltaObserver = Callable[[list[Delta]], None]


class EngineEventStream(Protocol):
    """The engine's events of one request, in order; see :class:`stentor.engine.client.client.RequestStream`."""

    def __aiter__(self) -> AsyncIterator[list[EngineEvent]]: ...

    def __anext__(self) -> Awaitable[list[EngineEvent]]: ...

    def abort(self, index: int = -1) -> None:
        """Ends one choice, or with -1 the whole request. May be called at any time, and again."""

    def routed_experts(self, index: int, drawn: int) -> bytes:
        """Experts of the tokens before the last of ``drawn`` tokens of a choice, if requested. Raises ValueError if
        they are missing."""


class Submitter(Protocol):
    """Takes requests for an engine; see :class:`stentor.engine.client.client.EngineClient`."""

    def submit(self, request: EngineRequest) -> EngineEventStream:
        """Raises :class:`stentor.engine.client.errors.EngineUnavailable` when the engine takes no requests, and
        :class:`stentor.engine.channel.arena.ArenaFull` if there is no room for the media."""


class ModelEngine(Submitter, Protocol):
    """The engine of one model."""

    @property
    def ready(self) -> EngineReady | None: ...


class GenerationRequest(EngineRequest, frozen=True, kw_only=True):
    """A request to the engine, and how its tokens become deltas."""

    stop: tuple[str, ...] = ()
    """Stop strings; none may be empty."""
    stop_patterns: tuple[str, ...] = ()
    """Of :class:`.stop_patterns.StopPatterns`, which takes them."""
    include_stop: bool = False
    """The stop string or stop token that ends a choice is part of its text."""
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    decoder_prompt: tuple[int, ...] = ()
    """Of an encoder-decoder, whose encoder gets the prompt: tokens of its decoder behind those that begin every
    output."""
    parser: Callable[[], Parser] | None = None
    """Makes the parser of one choice; None: no parser."""
    visible: frozenset[str] = frozenset()
    """Special tokens that the parser needs, even if others are skipped; one of a few sets that the model has."""
    beams: Beams | None = None
    """The beam search that finds its sequences; None: they are sampled."""
    repetition: RepetitionDetection | None = None
    """Ends sequences that repeat themselves."""


class Generation:
    """The deltas of one request: an async iterator of one batch per engine batch.

    There may be hundreds of thousands of log-probabilities: those of a prompt come at once, and so do those of tokens
    while the client reads nothing. Such a batch is yielded in slices, with a turn of the event loop between them.

    Ends once every choice has had its :class:`~stentor.protocols.ipc.deltas.Finish`. Use it under
    ``contextlib.aclosing``: closing it, or cancelling an iteration, aborts running sequences.
    """

    __slots__ = (
        "_choices",
        "_experts",
        "_loop_turns",
        "_observe",
        "_open",
        "_prompt_done",
        "_repetitions",
        "_scored",
        "_slices",
        "_stream",
    )

    def __init__(
        self,
        client: Submitter,
        pool: TokenizerPool,
        request: GenerationRequest,
        observe: DeltaObserver | None = None,
        loop_turns: LoopTurns | None = None,
    ) -> None:
        """Submits the request. ``observe`` sees each batch before it is read. Long work runs in slices, at
        ``loop_turns``.

        Raises :class:`stentor.engine.client.errors.EngineUnavailable` if the engine takes no requests, and
        ``ValueError`` for an empty stop string.
        """
        params = request.params
        stops = compiled_stops(request.stop) if request.stop else None
        patterns = compiled_patterns(request.stop_patterns) if request.stop_patterns else None

        def matcher() -> Matcher | None:
            strings = None if stops is None else StopMatcher(stops, include=request.include_stop)
            return strings if patterns is None else PatternMatcher(patterns, strings)

        ends = frozenset[int]()
        if not request.include_stop:
            ends = frozenset((*params.eos_token_ids, *params.stop_token_ids))
        make_parser, visible = request.parser, request.visible
        if make_parser is None:
            visible = frozenset()
        elif visible:
            # the parser needs these markers, even if they also end the output
            ends -= pool.detokenizers.ids(visible)
        self._choices: Final = [
            OutputChoice(
                index,
                pool.detokenizers.new(
                    skip_special_tokens=request.skip_special_tokens,
                    spaces_between_special_tokens=request.spaces_between_special_tokens,
                    prompt_tail=request.prompt[-PROMPT_TAIL:],
                    visible=visible,
                ),
                matcher(),
                ends,
                params.min_tokens,
                None if make_parser is None else Parsed(index, make_parser()),
            )
            for index in range(len(request.seeds))
        ]
        self._open = len(self._choices)
        self._repetitions: list[RepetitionDetector] = []
        """One for each choice, if repetitions are to be detected."""
        if request.repetition is not None and request.repetition.max_pattern_size:
            from . import repetition

            self._repetitions = [
                repetition.RepetitionDetector(request.repetition, params.min_tokens) for _ in self._choices
            ]
        self._observe = observe
        self._loop_turns = loop_turns or LoopTurns()
        self._scored = params.logprobs is not None or params.prompt_logprobs is not None
        self._experts = params.routed_experts is not None
        self._slices: deque[list[EngineEvent]] = deque()
        self._prompt_done = False
        self._stream: Final = client.submit(request)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Delta]:
        while self._open:
            try:
                if self._slices:
                    await self._loop_turns.take()
                    events = self._slices.popleft()
                else:
                    events = await self._stream.__anext__()
                    if self._scored and sum(map(entries, events)) > SLICE_ENTRIES:
                        self._slices.extend(slices_of(events))
                        continue
                deltas = self._take(events)
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

    def abort(self) -> None:
        """Has running sequences end as they are, with the reason ``abort``, which the reader still gets."""
        self._stream.abort()

    async def aclose(self) -> None:
        """Aborts running sequences; may be called repeatedly."""
        if self._open:
            self._open = 0
            self._stream.abort()

    def _take(self, events: list[EngineEvent]) -> list[Delta]:
        deltas: list[Delta] = []
        for event in events:
            match event:
                case SequenceTokens(index=index):
                    choice = self._choices[index]
                    if not choice.open:
                        continue
                    tokens, logprobs, end = event.tokens, event.logprobs, None
                    if self._repetitions and (end := self._repetitions[index].find(tokens)) is not None:
                        tokens, logprobs = tokens[:end], None if logprobs is None else logprobs[:end]
                    choice.push(tokens, logprobs, deltas)
                    if choice.matched is not None:
                        self._stream.abort(index)
                        self._close(choice, deltas, Finish(index, "stop", choice.matched, None))
                    elif end is not None:
                        self._stream.abort(index)
                        why = self._repetitions[index].STOP_REASON
                        self._finish(choice, Finished(-1, index, "length", None, None), deltas, why)
                case Finished(index=index):
                    choice = self._choices[index]
                    if choice.open:
                        self._finish(choice, event, deltas)
                case PromptDone() if self._prompt_done:
                    deltas.append(PromptLogprobs(event.logprobs or []))
                case PromptDone():
                    self._prompt_done = True
                    deltas.append(
                        PromptProcessed(event.cached_tokens, event.logprobs, event.queue_seconds, event.prefill_seconds)
                    )
                case PromptPart():
                    pass  # only requests with streamed audio get any
                case other:
                    assert_never(other)
        return deltas

    def _finish(self, choice: OutputChoice, event: Finished, deltas: list[Delta], why: str | None = None) -> None:
        """``why``: the stop reason of a sequence that the engine would have continued."""
        choice.finish(deltas, cut=event.reason != "stop")
        if choice.matched is not None:
            end = Finish(choice.index, "stop", choice.matched, None)
        else:
            stop_reason = event.stop_token if why is None else why
            end = Finish(choice.index, event.reason, stop_reason, event.message, event.fault, field=event.field)
        self._close(choice, deltas, end)

    def _close(self, choice: OutputChoice, deltas: list[Delta], end: Finish) -> None:
        choice.open = False
        self._open -= 1
        if self._experts and end.reason in ("stop", "length"):
            end = self._with_experts(choice, end)
        deltas.append(end)

    def _with_experts(self, choice: OutputChoice, end: Finish) -> Finish:
        try:
            found = self._stream.routed_experts(choice.index, choice.produced)
        except ValueError as error:
            return Finish(choice.index, "error", None, str(error))
        return msgspec.structs.replace(end, routed_experts=found)

    def _end_unfinished(self) -> list[Delta]:
        """A stream that ended early still owes every open choice its terminal delta."""
        deltas: list[Delta] = []
        for choice in self._choices:
            if choice.open:
                why = "The engine ended the request without a result; try again."
                self._finish(choice, Finished(-1, choice.index, "error", None, why), deltas)
        return deltas
