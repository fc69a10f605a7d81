"""Engine events with many log-probabilities, cut into slices that are each written in a few milliseconds."""

from collections.abc import Iterator, Sequence

import msgspec

from stentor.protocols.ipc.actors import EngineEvent, Finished, PromptDone, PromptPart, SequenceTokens
from stentor.protocols.ipc.steps import TokenLogprobs

from ...common.loop_turns import SLICE_ENTRIES


def entries(event: EngineEvent) -> int:
    """Number of log-probabilities in an event."""
    if isinstance(event, Finished | PromptPart) or not event.logprobs:
        return 0
    return len(event.logprobs) * _per_token(event.logprobs)


def slices_of(events: Sequence[EngineEvent]) -> Iterator[list[EngineEvent]]:
    """Cuts events into lists of at most :data:`...common.loop_turns.SLICE_ENTRIES` log-probabilities, or one token's.

    A :class:`.PromptDone` with more becomes several, each with the log-probabilities of the next tokens of the prompt.
    """
    some: list[EngineEvent] = []
    held = 0
    for event in events:
        for part in _parts(event):
            more = entries(part)
            if some and held + more > SLICE_ENTRIES:
                yield some
                some, held = [], 0
            some.append(part)
            held += more
    if some:
        yield some


def _parts(event: EngineEvent) -> Iterator[EngineEvent]:
    if isinstance(event, Finished | PromptPart) or entries(event) <= SLICE_ENTRIES:
        yield event
        return
    assert event.logprobs is not None
    step = max(1, SLICE_ENTRIES // _per_token(event.logprobs))
    for start in range(0, len(event.logprobs), step):
        end = start + step
        if isinstance(event, PromptDone):
            yield msgspec.structs.replace(event, logprobs=event.logprobs[start:end])
        else:
            yield SequenceTokens(event.rid, event.index, event.tokens[start:end], event.logprobs[start:end])


def _per_token(logprobs: Sequence[TokenLogprobs | None]) -> int:
    """Entries for each token; equal except for the first of a prompt."""
    last = logprobs[-1]
    return 1 if last is None else 1 + len(last.top)
