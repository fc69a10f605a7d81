"""Every event of a session, held against the SDK's types, the order of the protocol, and what came before."""

from collections.abc import Mapping
from typing import Any, Final

from openai.types.realtime.realtime_server_event import RealtimeServerEvent

from stentor.tests.wire.validate import WireError, check_event

EXTENSIONS: Final[Mapping[str, frozenset[str]]] = {
    "RealtimeSessionCreateRequest": frozenset({"id", "object", "expires_at"}),
    "RealtimeTranscriptionSessionCreateRequest": frozenset({"id", "object", "expires_at"}),
    "RealtimeErrorEvent": frozenset({"request_id"}),
}
"""What the API adds to a session that it tells of; the SDK's type is that of a session which is asked for. And of ours:
which request failed."""


class _Item:
    """One item of a response, between its first event and its last."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.step = "added"
        self.text = ""


class Ledger:
    """Takes events one by one, and raises WireError for the first that should not have come."""

    def __init__(self) -> None:
        self.order: list[str] = []
        """Items of the conversation, by what was told of them."""
        self.open: dict[str, str | None] = {}
        """Responses that have not ended, with the conversation that they belong to."""
        self.ended: dict[str, dict[str, Any]] = {}
        self.kinds: list[str] = []
        self.events: list[dict[str, Any]] = []
        self._items: dict[str, dict[str, _Item]] = {}
        self._ids: set[str] = set()
        self._waits_for_limits: str | None = None
        self._transcribed: set[str] = set()

    @property
    def responding(self) -> int:
        """Open responses of the conversation."""
        return sum(conversation is not None for conversation in self.open.values())

    def take(self, event: dict[str, Any]) -> None:
        check_event(RealtimeServerEvent, event, EXTENSIONS)
        kind = event["type"]
        _that(event["event_id"] not in self._ids, "an event id comes twice")
        self._ids.add(event["event_id"])
        _that(bool(self.kinds) or kind in ("session.created", "error"), "a session begins with session.created")
        if self._waits_for_limits is not None:
            _that(kind == "rate_limits.updated", f"{kind} instead of rate_limits.updated behind response.created")
            self._waits_for_limits = None
        elif kind == "rate_limits.updated":
            raise WireError("rate_limits.updated without response.created before it")
        if kind.startswith("response."):
            self._take_response(kind, event)
        elif kind.startswith("conversation.item."):
            self._take_item(kind.removeprefix("conversation.item."), event)
        elif kind == "input_audio_buffer.committed":
            _that(event["previous_item_id"] == (self.order[-1] if self.order else None), "committed elsewhere")
        self.kinds.append(kind)
        self.events.append(event)

    # ---- items

    def _take_item(self, kind: str, event: dict[str, Any]) -> None:
        match kind:
            case "added":
                item, before = event["item"], event["previous_item_id"]
                _that(item["id"] not in self.order, "an item is added twice")
                _that(before is None or before in self.order, "an item is added behind one that is not there")
                self.order.insert(0 if before is None else self.order.index(before) + 1, item["id"])
            case "done":
                place = self._place(event["item"]["id"])
                _that(event["previous_item_id"] == (self.order[place - 1] if place else None), "done elsewhere")
            case "deleted":
                del self.order[self._place(event["item_id"])]
            case "truncated":
                self._place(event["item_id"])
            case "retrieved":
                self._place(event["item"]["id"])
            case "input_audio_transcription.completed" | "input_audio_transcription.failed":
                _that(event["item_id"] not in self._transcribed, "an item is transcribed twice")
                self._transcribed.add(event["item_id"])
            case "input_audio_transcription.delta":
                _that(event["item_id"] not in self._transcribed, "a transcript goes on behind its end")

    def _place(self, id: str) -> int:
        _that(id in self.order, "there is no such item")
        return self.order.index(id)

    # ---- responses

    def _take_response(self, kind: str, event: dict[str, Any]) -> None:
        if kind == "response.created":
            response = event["response"]
            _that(response["id"] not in self.open and response["id"] not in self.ended, "a response begins twice")
            _that(response["status"] == "in_progress" and response["output"] == [], "it begins with something")
            self.open[response["id"]] = response["conversation_id"]
            _that(self.responding <= 1, "two responses are open")
            self._items[response["id"]] = {}
            self._waits_for_limits = response["id"]
            return
        if kind == "response.done":
            self._end(event["response"])
            return
        id = event["response_id"]
        _that(id in self.open, f"{kind} of a response that is not open")
        items = self._items[id]
        if kind == "response.output_item.added":
            item = event["item"]
            _that(event["output_index"] == len(items), "an output index is left out")
            _that(item["status"] == "in_progress" and not item.get("content"), "an item begins with something")
            items[item["id"]] = _Item(item["type"])
            return
        if kind == "response.output_item.done":
            self._end_item(items[event["item"]["id"]], event)
            return
        item_id = event["item_id"]
        _that(list(items).index(item_id) == event["output_index"], "the output index is another item's")
        self._step(items[item_id], kind.removeprefix("response."), event)

    def _step(self, item: _Item, kind: str, event: dict[str, Any]) -> None:
        step = item.step
        match kind:
            case "content_part.added":
                _that(step == "added" and item.kind == "message", "a part comes at the wrong time")
                item.step = "part"
            case "output_text.delta" | "output_audio_transcript.delta":
                _that(step == "part", f"{kind} behind its part")
                item.text += event["delta"]
            case "output_audio.delta":
                _that(step == "part" and bool(item.text), "audio without its transcript")
            case "output_audio.done":
                _that(step == "part", "audio ends twice")
                item.step = "audio done"
            case "output_text.done":
                _that(step == "part" and event["text"] == item.text, "the text is not that of its deltas")
                item.step = "text done"
            case "output_audio_transcript.done":
                _that(step == "audio done" and event["transcript"] == item.text, "the transcript is another one")
                item.step = "text done"
            case "content_part.done":
                part = event["part"]
                _that(step == "text done", "a part ends too early")
                _that((part.get("text") or part.get("transcript") or "") == item.text, "the part is another one")
                item.step = "part done"
            case "function_call_arguments.delta":
                _that(step == "added" and item.kind == "function_call", "arguments at the wrong time")
                item.text += event["delta"]
            case "function_call_arguments.done":
                _that(step == "added" and event["arguments"] == item.text, "the arguments are not those of the deltas")
                item.step = "part done"
            case _:
                raise WireError(f"{kind} is not known here")

    def _end_item(self, item: _Item, event: dict[str, Any]) -> None:
        _that(item.step == "part done", f"an item ends at {item.step}")
        item.step = "done"
        reported = event["item"]
        _that(reported["status"] in ("completed", "incomplete"), "an item ends in progress")
        if item.kind == "function_call":
            _that(reported["arguments"] == item.text, "the call has other arguments")
        else:
            (part,) = reported["content"]
            _that((part.get("text") or part.get("transcript") or "") == item.text, "the item says something else")

    def _end(self, response: dict[str, Any]) -> None:
        id = response["id"]
        _that(id in self.open, "a response ends that is not open")
        items = self._items.pop(id)
        _that(all(item.step == "done" for item in items.values()), "a response ends before its items")
        _that([item["id"] for item in response["output"]] == list(items), "a response ends with other items")
        _that(response["status"] != "in_progress", "a response ends in progress")
        _that(response["status_details"]["type"] == response["status"], "the details are of another status")
        if response["status"] in ("completed", "incomplete") and items:
            _that(response["usage"] is not None, "a response without usage")
        del self.open[id]
        self.ended[id] = response


def _that(holds: bool, otherwise: str) -> None:
    if not holds:
        raise WireError(otherwise)


def part_of(events: list[dict[str, Any]], response: str) -> list[str]:
    """The types of a response's own events, and of items of the conversation between them; deltas once."""
    kinds: list[str] = []
    for event in events:
        kind = event["type"]
        own = event.get("response_id") == response or event.get("response", {}).get("id") == response
        between = kind in ("rate_limits.updated", "conversation.item.added", "conversation.item.done")
        if (own or (kinds and between)) and not (kind.endswith(".delta") and kinds[-1:] == [kind]):
            kinds.append(kind)
    return kinds
