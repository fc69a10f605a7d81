"""What an earlier server did for a response with tools, read from its store.

Events are stored before they are sent. So the results of ended items are known, calls that began without an end are
known as such, and the tokens of each turn are stored.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final

import msgspec

from stentor.engine.client.request import EngineRequest
from stentor.protocols.ipc.actors import EngineEvent, Finished, PromptDone, SequenceTokens
from stentor.protocols.openai.responses.items import Item
from stentor.protocols.openai.responses.objects import McpCallItem

from ...state.event_log import Step, kind_of
from ...text.output.generation import EngineEventStream, Submitter

_BEGINNINGS: Final = (
    b"response.mcp_call_arguments.done",
    b"response.web_search_call.searching",
    b"response.code_interpreter_call.interpreting",
)
"""Each names the item of a call that follows."""


class Replay:
    def __init__(self, events: Iterable[bytes], steps: Sequence[Step] | None) -> None:
        """``events`` and ``steps`` that are stored; a step without tokens is the end of a turn. ``steps`` None: no turn
        has been begun."""
        self._items: dict[str, Item] = {}
        self._begun: set[str] = set()
        for event in events:
            kind = kind_of(event)
            if kind == b"response.output_item.done":
                item = msgspec.json.decode(event)["item"]
                self._items[item["id"]] = item
            elif kind in _BEGINNINGS:
                self._begun.add(msgspec.json.decode(event)["item_id"])
        self._turns: list[list[Step]] = [] if steps is None else [[]]
        for step in steps or ():
            if step.tokens:
                self._turns[-1].append(step)
            else:
                self._turns.append([])

    def list_of(self, label: str) -> list[dict[str, Any]] | None:
        for item in self._items.values():
            if item["type"] == "mcp_list_tools" and item["server_label"] == label and not item.get("error"):
                tools: list[dict[str, Any]] = item["tools"]
                return tools
        return None

    def was_begun(self, item: str) -> bool:
        """Whether the call may have been made."""
        return item in self._begun

    def answered(self, calls: Sequence[McpCallItem]) -> list[tuple[McpCallItem, Item]]:
        """Ended calls with their results, in the order of their ends."""
        by_id = {item.id: item for item in calls}
        return [(by_id[name], item) for name, item in self._items.items() if name in by_id]

    def submitter(self, turn: int, client: Submitter) -> Submitter | None:
        """The submitter of a turn; None: the engine, since nothing is stored."""
        if turn >= len(self._turns):
            return None
        steps, ended = self._turns[turn], turn < len(self._turns) - 1
        return ReplaySubmitter(steps) if ended else ResumingSubmitter(client, steps)


NOTHING: Final = Replay((), None)


class ReplaySubmitter:
    """Replays the output of an ended turn, without the engine."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps

    def submit(self, request: EngineRequest) -> EngineEventStream:
        begun, ended = PromptDone(-1, 0, 0.0, 0.0, None), Finished(-1, 0, "stop", None, None)
        return _ReplayedStream([begun, *_delivered(self._steps), ended])


class ResumingSubmitter:
    """Hands a request to the engine with the tokens that it has had, and its reader those tokens first."""

    def __init__(self, client: Submitter, steps: Sequence[Step]) -> None:
        self._client = client
        self._steps = steps

    def submit(self, request: EngineRequest) -> EngineEventStream:
        tokens = [token for step in self._steps for token in step.tokens]
        stream = self._client.submit(msgspec.structs.replace(request, resumed=[tokens]))
        return _ReplayedStream(_delivered(self._steps), stream)


def _delivered(steps: Sequence[Step]) -> list[EngineEvent]:
    return [SequenceTokens(-1, 0, step.tokens, step.logprobs) for step in steps]


class _ReplayedStream:
    """``events``, then the engine's own, if it was used."""

    def __init__(self, events: Sequence[EngineEvent], stream: EngineEventStream | None = None) -> None:
        self._events = iter(events)
        self._stream = stream

    def __aiter__(self) -> AsyncIterator[list[EngineEvent]]:
        return self

    async def __anext__(self) -> list[EngineEvent]:
        event = next(self._events, None)
        if event is not None:
            return [event]
        if self._stream is None:
            raise StopAsyncIteration
        return await self._stream.__anext__()

    def routed_experts(self, index: int, drawn: int) -> bytes:
        raise ValueError("nobody has asked for experts")

    def abort(self, index: int = -1) -> None:
        if self._stream is not None:
            self._stream.abort(index)
