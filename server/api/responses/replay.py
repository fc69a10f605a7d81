"""What an earlier server has done of a response with tools, read from what it stored.

An event is stored before it is shown. So the items that ended are known with what came of them; calls that were begun
and did not end are known as such; and the tokens of each turn are there.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec

from stentor.protocols.openai.responses.items import Item
from stentor.protocols.openai.responses.objects import McpCallItem

from ...state.event_log import Step, kind_of
from ...text.generation import Submitter

_BEGINNINGS: Final = (
    b"response.mcp_call_arguments.done",
    b"response.web_search_call.searching",
    b"response.code_interpreter_call.interpreting",
)
"""Each names the item of a call that is then made."""


class SubmitterFactory(Protocol):
    """Makes what takes a turn to the engine, of what is known of it."""

    def __call__(self, client: Submitter, steps: Sequence[Step], *, ended: bool) -> Submitter: ...


class Replay:
    def __init__(
        self, events: Iterable[bytes], steps: Sequence[Step], submitters: SubmitterFactory | None = None
    ) -> None:
        """``events`` and ``steps`` that are stored; a step without tokens is the end of a turn."""
        self._items: dict[str, Item] = {}
        self._begun: set[str] = set()
        for event in events:
            kind = kind_of(event)
            if kind == b"response.output_item.done":
                item = msgspec.json.decode(event)["item"]
                self._items[item["id"]] = item
            elif kind in _BEGINNINGS:
                self._begun.add(msgspec.json.decode(event)["item_id"])
        self._turns: list[list[Step]] = [[]]
        for step in steps:
            if step.tokens:
                self._turns[-1].append(step)
            else:
                self._turns.append([])
        self._submitters = submitters

    def list_of(self, label: str) -> list[dict[str, Any]] | None:
        for item in self._items.values():
            if item["type"] == "mcp_list_tools" and item["server_label"] == label and not item.get("error"):
                tools: list[dict[str, Any]] = item["tools"]
                return tools
        return None

    def call_of(self, item: str) -> Item | None:
        """As it ended."""
        return self._items.get(item)

    def was_begun(self, item: str) -> bool:
        """Whether the call may have been made."""
        return item in self._begun

    def answered(self, calls: Sequence[McpCallItem]) -> list[McpCallItem]:
        """Those that ended, in the order in which they did."""
        by_id = {item.id: item for item in calls}
        return [by_id[name] for name in self._items if name in by_id]

    def submitter(self, turn: int, client: Submitter) -> Submitter | None:
        """What to take the turn to; None: the engine, for nothing is known of it."""
        if self._submitters is None or turn >= len(self._turns):
            return None
        ended = turn < len(self._turns) - 1
        return self._submitters(client, self._turns[turn], ended=ended)


NOTHING: Final = Replay((), ())
