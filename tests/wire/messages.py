"""A stream of Anthropic's Messages: every event valid, the order kept, and the message that it comes to."""

import json
from typing import Any, Final

from anthropic.types import RawMessageStreamEvent

from stentor.tests.wire.validate import NONE, Extensions, WireError, check_event, frames_of

DELTAS: Final = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("thinking", "signature"),
    "input_json_delta": ("tool_use", "partial_json"),
    "compaction_delta": ("compaction", "content"),
}
"""The block that a delta belongs to, and the field that it brings more of."""


def check_stream(
    text: bytes | str, extensions: Extensions = NONE, event: Any = RawMessageStreamEvent
) -> dict[str, Any]:
    """The message that the stream comes to, as one that was not streamed has it; ``event`` is the SDK's type of its
    events. Raises WireError."""
    events = []
    for frame in frames_of(text):
        value = json.loads(frame.data)
        if frame.event != value["type"]:
            raise WireError(f"`event: {frame.event}` before {value['type']}")
        if value["type"] == "error":
            raise WireError(f"the stream ends in an error: {frame.data}")
        if value["type"] == "ping":
            if value != {"type": "ping"}:
                raise WireError(f"a ping holds nothing: {frame.data}")
            continue
        check_event(event, frame.data, extensions)
        events.append(value)
    kinds = [event["type"] for event in events]
    if kinds[:1] != ["message_start"] or kinds[-2:] != ["message_delta", "message_stop"]:
        raise WireError(
            f"message_start, blocks, message_delta and message_stop are expected: {kinds[:2]}, {kinds[-2:]}"
        )
    message: dict[str, Any] = dict(events[0]["message"])
    if message["content"] or message["stop_reason"] is not None:
        raise WireError("message_start has content already, or a stop_reason")
    message["content"] = _blocks(events[1:-2])
    end = events[-2]
    edits = {name: end[name] for name in ("context_management",) if name in end}
    return {**message, **end["delta"], **edits, "usage": {**message["usage"], **end["usage"]}}


def _blocks(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    json_text: str | None = None
    is_open = False
    for event in events:
        kind = event["type"]
        place = len(blocks) if kind == "content_block_start" else len(blocks) - 1
        if event.get("index") != place or is_open == (kind == "content_block_start"):
            raise WireError(f"{kind} {event.get('index')} where block {place} is {'open' if is_open else 'not open'}")
        if kind == "content_block_start":
            blocks.append(dict(event["content_block"]))
            is_open, json_text = True, "" if blocks[-1]["type"] == "tool_use" else None
        elif kind == "content_block_delta":
            delta = event["delta"]
            wanted, field = DELTAS[delta["type"]]
            if blocks[-1]["type"] != wanted:
                raise WireError(f"a {delta['type']} in a block of type {blocks[-1]['type']}")
            if field == "partial_json":
                json_text = (json_text or "") + delta[field]
            else:
                blocks[-1][field] = (blocks[-1].get(field) or "") + delta[field]
        else:
            is_open = False
            if json_text:
                blocks[-1]["input"] = _input(json_text)
    if is_open:
        raise WireError(f"block {len(blocks) - 1} was not ended")
    return blocks


def _input(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text  # of a call that the output was cut off in
