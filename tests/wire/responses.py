"""A stream of the Responses API: every event valid, the order kept, and the response that it comes to."""

import json
from typing import Any, Final

from openai.types.responses import ResponseStreamEvent

from stentor.tests.wire.validate import NONE, Extensions, WireError, check_event, frames_of

ENDS: Final = ("response.completed", "response.incomplete", "response.failed")
OPENINGS: Final = ("response.created", "response.queued", "response.in_progress")
PIECES: Final = {
    "response.output_text": "text",
    "response.refusal": "refusal",
    "response.reasoning_text": "text",
    "response.reasoning_summary_text": "text",
    "response.function_call_arguments": "arguments",
    "response.custom_tool_call_input": "input",
    "response.mcp_call_arguments": "arguments",
    "response.code_interpreter_call_code": "code",
    "response.shell_call_command": "command",
}
"""What comes in deltas, and the field in which its ``done`` has the whole."""
DESCRIBED: Final[Extensions] = {"ResponseFunctionCallArgumentsDoneEvent": frozenset({"name"})}
"""Fields that OpenAI's OpenAPI description requires, and that the SDK's type lacks."""
BEGINNINGS: Final = (
    "response.mcp_call_arguments.done",
    "response.web_search_call.searching",
    "response.code_interpreter_call.interpreting",
)
"""What a call that the server makes waits for its answer behind."""
WITHIN: Final = {
    "response.output_text": "response.content_part",
    "response.refusal": "response.content_part",
    "response.reasoning_summary_text": "response.reasoning_summary_part",
}
PARTS: Final = {
    "response.content_part": "content_index",
    "response.reasoning_summary_part": "summary_index",
}


class _Stream:
    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        self._part: tuple[str, int] | None = None
        self._parts: dict[str, list[dict[str, Any]]] = {}
        self._pieces: dict[tuple[str, int], list[str]] = {}
        self._commands: list[str] = []
        self._called: dict[int, dict[str, Any]] = {}
        """Calls by their places that the server has made, while others are written: they end when they are answered."""

    def take(self, event: dict[str, Any]) -> None:
        kind: str = event["type"]
        stem, _, verb = kind.rpartition(".")
        if self._take_called(kind, event):
            return
        if kind == "response.output_item.added":
            self._begin(event)
        elif kind == "response.output_item.done":
            self._end(event)
        elif stem == "response.shell_call_command":
            self._take_command(verb, event)
        elif stem in PARTS:
            self._at(event)
            self._take_part(stem, verb, event)
        elif stem in PIECES:
            self._at(event)
            self._take_piece(stem, verb, event)
        elif "output_index" in event:
            self._at(event)
        else:
            raise WireError(f"{kind} among the items")

    def _take_called(self, kind: str, event: dict[str, Any]) -> bool:
        """Whether the event is of a call that waits for its answer, or lets one begin to wait."""
        opened = self._open
        if kind in BEGINNINGS and opened is not None:
            self._at(event)
            if kind == "response.mcp_call_arguments.done":
                self._take_piece("response.mcp_call_arguments", "done", event)
            if self._pieces:
                raise WireError(f"no done for the deltas of {next(iter(self._pieces))}")
            self._called[len(self.items)] = opened
            self.items.append({})
            self._open = None
            return True
        called = self._called.get(event.get("output_index", -1))
        if called is None:
            return False
        if kind == "response.output_item.done":
            if (called["type"], called["id"]) != (event["item"]["type"], event["item"]["id"]):
                raise WireError(f"item {event['output_index']} ends as another")
            self.items[event["output_index"]] = event["item"]
            del self._called[event["output_index"]]
        elif not kind.startswith(f"response.{called['type']}.") or event["item_id"] != called["id"]:
            raise WireError(f"{kind} for a call that waits for its answer")
        return True

    def _begin(self, event: dict[str, Any]) -> None:
        if self._open is not None or event["output_index"] != len(self.items):
            raise WireError(f"item {event['output_index']} begins where {len(self.items)} is next or still open")
        self._open = event["item"]
        self._parts, self._pieces, self._part, self._commands = {}, {}, None, []

    def _end(self, event: dict[str, Any]) -> None:
        opened, item = self._open, event["item"]
        if opened is None or event["output_index"] != len(self.items):
            raise WireError(f"item {event['output_index']} ends and is not open")
        if (opened["type"], opened.get("id")) != (item["type"], item.get("id")) or self._part is not None:
            raise WireError(f"item {event['output_index']} ends as another, or with a part open")
        if self._pieces:
            raise WireError(f"no done for the deltas of {next(iter(self._pieces))}")
        if item["type"] == "shell_call" and item["action"]["commands"] != self._commands:
            raise WireError(f"the commands of item {event['output_index']} are not those that came in its stream")
        for stem, parts in self._parts.items():
            if item["content" if stem == "response.content_part" else "summary"] != parts:
                raise WireError(f"the parts of item {event['output_index']} are not those that came in its stream")
        self.items.append(item)
        self._open = None

    def _at(self, event: dict[str, Any]) -> None:
        if self._open is None or event["output_index"] != len(self.items):
            raise WireError(f"{event['type']} for item {event['output_index']}, which is not open")
        if event["item_id"] != self._open.get("id"):
            raise WireError(f"{event['type']} has the id of another item")

    def _take_part(self, stem: str, verb: str, event: dict[str, Any]) -> None:
        parts = self._parts.setdefault(stem, [])
        place = (stem, event[PARTS[stem]])
        if place[1] != len(parts) or (self._part is None) != (verb == "added"):
            raise WireError(f"{event['type']} for part {place[1]} where {len(parts)} is next")
        if verb == "added":
            self._part = place
        else:
            parts.append(event["part"])
            self._part = None

    def _take_command(self, verb: str, event: dict[str, Any]) -> None:
        """One after the other, each added before its pieces come; these events name no item."""
        if self._open is None or event["output_index"] != len(self.items) or self._open["type"] != "shell_call":
            raise WireError(f"{event['type']} for item {event['output_index']}, which is no shell call that is open")
        if event["command_index"] != len(self._commands):
            raise WireError(f"{event['type']} for command {event['command_index']}, and {len(self._commands)} is next")
        place = ("response.shell_call_command", event["command_index"])
        if verb == "added":
            self._pieces[place] = [event["command"]]
        elif place not in self._pieces:
            raise WireError(f"{event['type']} for a command that was not added")
        else:
            self._take_piece("response.shell_call_command", verb, event)
            if verb == "done":
                self._commands.append(event["command"])

    def _take_piece(self, stem: str, verb: str, event: dict[str, Any]) -> None:
        place = (stem, event.get("content_index", event.get("summary_index", event.get("command_index", 0))))
        within = WITHIN.get(stem)
        if within is not None and self._part != (within, place[1]):
            raise WireError(f"{event['type']} outside of its part {place[1]}")
        if verb == "delta":
            self._pieces.setdefault(place, []).append(event["delta"])
        elif "".join(self._pieces.pop(place, [])) != event[PIECES[stem]]:
            raise WireError(f"{event['type']} is not what its deltas come to")
        elif stem == "response.function_call_arguments" and event.get("name") != (self._open or {}).get("name"):
            raise WireError(f"{event['type']} does not name the function")

    def finish(self) -> None:
        if self._open is not None or self._part is not None or self._called:
            raise WireError(f"item {len(self.items)} was not ended")


def check_stream(text: bytes | str, extensions: Extensions = NONE) -> dict[str, Any]:
    """The response that the stream ends with. Raises WireError."""
    frames = frames_of(text)
    if not frames or frames[-1].data != "[DONE]":
        raise WireError("the stream does not end with [DONE]")
    events: list[dict[str, Any]] = []
    known = {**DESCRIBED, **extensions}
    for number, frame in enumerate(frames[:-1]):
        check_event(ResponseStreamEvent, frame.data, known)
        event = json.loads(frame.data)
        if frame.event != event["type"] or event["sequence_number"] != number:
            raise WireError(f"event {number} is {frame.event} {event['type']} {event['sequence_number']}")
        events.append(event)
    kinds = [event["type"] for event in events]
    opening = [kind for kind in kinds if kind in OPENINGS]
    if opening != kinds[: len(opening)] or opening != [kind for kind in OPENINGS if kind in opening]:
        raise WireError(f"a response opens with {', '.join(OPENINGS)}, in this order: {kinds[:4]}")
    if opening[:1] != ["response.created"] or opening[-1] != "response.in_progress":
        raise WireError(f"a response is created and then in progress: {opening}")
    if kinds[-1] not in ENDS or any(kind in ENDS for kind in kinds[:-1]):
        raise WireError(f"a response ends once, and nothing follows: {kinds[-2:]}")
    stream = _Stream()
    for event in events[len(opening) : -1]:
        stream.take(event)
    last: dict[str, Any] = events[-1]["response"]
    if last["status"] != "failed":
        stream.finish()
        if stream.items != last["output"]:
            raise WireError("the response's output is not what its items were")
    ids = {event["response"]["id"] for event in events if "response" in event}
    if len(ids) != 1:
        raise WireError(f"one response has several ids: {ids}")
    return last
