"""Beam search over the engine: each step of each beam is a request that continues the beam by one token.

The prefix cache has all but the last token of each, so that a step computes one position a beam. A search has the
interface of one request (:class:`.generation.EngineEventStream`): its results come together at the end.
"""

import time
from typing import Final

import msgspec

from stentor.engine.channel.arena import ArenaFull
from stentor.engine.client.errors import EngineUnavailable
from stentor.engine.client.request import EngineRequest
from stentor.protocols.ipc.actors import EngineEvent, Finished, PromptDone, SequenceTokens
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.openai.beams import Beams

from .beams import Beam, BeamSearch, Ranked
from .generation import EngineEventStream, Submitter

_RID: Final = -1
"""Results of a search belong to no one request of the engine."""


class BeamSubmitter:
    """Takes requests for an engine and searches for their best continuations, instead of sampling them."""

    def __init__(self, client: Submitter, beams: Beams) -> None:
        self._client = client
        self._beams = beams

    def submit(self, request: EngineRequest) -> "BeamStream":
        """Raises as :meth:`generation.Submitter.submit`."""
        return BeamStream(self._client, request, self._beams)


class _StepFailed(Exception):
    """A request of a step ended without a token."""

    def __init__(self, end: Finished) -> None:
        super().__init__(end.message)
        self.end = end


class BeamStream:
    """The events of one search: its prompt, and at the end ``len(request.seeds)`` sequences, the best one first."""

    def __init__(self, client: Submitter, request: EngineRequest, beams: Beams) -> None:
        self._client = client
        self._request = msgspec.structs.replace(request, seeds=[0], arrival=time.monotonic())
        self._results = len(request.seeds)
        params = request.params
        self._logprobs = params.logprobs
        self._search = BeamSearch(
            width=beams.width,
            length_penalty=beams.length_penalty,
            prompt_len=len(request.prompt),
            max_tokens=params.max_tokens,
            ends=frozenset((*params.eos_token_ids, *params.stop_token_ids)),
            alternatives=params.logprobs or 0,
        )
        self._params = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            logprobs=max(2 * beams.width, params.logprobs or 0),
            num_drafts=0,
            rules=params.rules,
        )
        """Of the first step; later ones ask for one more token each."""
        self._prompt: list[EngineEvent] = []
        """The prompt's event, until it has been read."""
        self._ended = False
        self._live: list[EngineEventStream] = []
        """Requests of the present step, one for each running beam."""
        self._submit(params.prompt_logprobs)

    def __aiter__(self) -> "BeamStream":
        return self

    async def __anext__(self) -> list[EngineEvent]:
        if self._ended:
            raise StopAsyncIteration
        try:
            while not self._search.done:
                await self._step()
                if self._prompt:
                    events, self._prompt = self._prompt, []
                    return events
        except _StepFailed as failed:
            self.abort()
            end = failed.end
            return [msgspec.structs.replace(end, rid=_RID, index=index) for index in range(self._results)]
        self._ended = True
        return self._found()

    def abort(self, index: int = -1) -> None:
        """Ends the search. With an index nothing: sequences come when the search has ended."""
        if index < 0:
            self._ended = True
            for stream in self._live:
                stream.abort()

    def routed_experts(self, index: int, drawn: int) -> bytes:
        raise ValueError("a beam search does not report experts")

    async def _step(self) -> None:
        """Raises _StepFailed, with requests still live."""
        first = self._search.running[0].entry is None
        top_logprobs = [await self._read(stream, keep_prompt=first) for stream in self._live]
        self._search.advance(top_logprobs)
        self._live = []
        if not self._search.done:
            try:
                self._submit()
            except (EngineUnavailable, ArenaFull) as error:
                raise _StepFailed(Finished(_RID, 0, "error", None, str(error), "engine")) from error

    def _submit(self, prompt_logprobs: int | None = None) -> None:
        """Requests the next token of each running beam."""
        for beam in self._search.running:
            tokens = [entry.token for entry in beam.entries()]
            request = self._request
            if tokens:  # log-probabilities of the prompt have been returned
                request = msgspec.structs.replace(request, resumed=[tokens], probe=None)
            params = msgspec.structs.replace(self._params, max_tokens=len(tokens) + 1, prompt_logprobs=prompt_logprobs)
            self._live.append(self._client.submit(msgspec.structs.replace(request, params=params)))

    async def _read(self, stream: EngineEventStream, *, keep_prompt: bool) -> Ranked:
        """The most likely next tokens of one beam. Raises _StepFailed."""
        top: Ranked | None = None
        async for events in stream:
            for event in events:
                match event:
                    case PromptDone() if keep_prompt:
                        self._prompt.append(event)
                    case SequenceTokens(logprobs=logprobs) if logprobs:
                        top = logprobs[0].top
                    case Finished() if top is None:
                        raise _StepFailed(event)
        if top is None:
            raise _StepFailed(Finished(_RID, 0, "error", None, "the engine ended a beam's request without a token"))
        return top

    def _found(self) -> list[EngineEvent]:
        best = self._search.best()[: self._results]
        events = [event for index, beam in enumerate(best) for event in self._events(index, beam)]
        why = "the vocabulary is too small for so many beams"
        lacking = range(len(best), self._results)
        return [*events, *(Finished(_RID, index, "error", None, why) for index in lacking)]

    def _events(self, index: int, beam: Beam) -> list[EngineEvent]:
        entries = beam.entries()
        tokens = SequenceTokens(
            _RID, index, [entry.token for entry in entries], None if self._logprobs is None else entries
        )
        ended = beam.stop_token is not None
        return [tokens, Finished(_RID, index, "stop" if ended else "length", beam.stop_token, None)]
