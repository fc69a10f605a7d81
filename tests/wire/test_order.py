"""The order of each protocol's events: right streams pass, and each kind of disorder fails."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from stentor.tests.wire import chat, messages, responses
from stentor.tests.wire.validate import WireError

Event = dict[str, Any]
Change = Callable[[list[Event]], list[Event]]
"""From the events of a right stream to those of a wrong one."""


def without(place: int) -> Change:
    return lambda events: [event for number, event in enumerate(events) if number != place]


def swapped(first: int, second: int) -> Change:
    def change(events: list[Event]) -> list[Event]:
        events[first], events[second] = events[second], events[first]
        return events

    return change


def edited(place: int, **fields: Any) -> Change:
    def change(events: list[Event]) -> list[Event]:
        events[place] = {**events[place], **fields}
        return events

    return change


# ---- chat


def chunk(delta: Event | None = None, finish: str | None = None, usage: Event | None = None) -> Event:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    if finish is not None:
        choice["stop_reason"] = None
    choices = [] if delta is None else [choice]
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return {**head, "choices": choices, "usage": usage}


def call(**fields: Any) -> Event:
    return {"tool_calls": [{"index": 0, **fields}]}


CHAT = [
    chunk({"role": "assistant", "content": None}),
    chunk({"reasoning": "hm", "reasoning_content": "hm"}),
    chunk({"content": "Hé"}),
    chunk(call(id="call_1", type="function", function={"name": "f", "arguments": ""})),
    chunk(call(function={"arguments": '{"a"'})),
    chunk(call(function={"arguments": ":1}"})),
    chunk({}, finish="tool_calls"),
    chunk(usage={"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}),
]


def chat_text(events: Sequence[Event]) -> str:
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"


def test_a_chat_stream_comes_to_its_answer() -> None:
    (choice,) = chat.check_stream(chat_text(CHAT))["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": "Hé",
        "refusal": None,
        "reasoning": "hm",
        "reasoning_content": "hm",
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}],
    }
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    "change",
    [
        without(0),
        without(3),
        without(6),
        without(7),
        swapped(6, 5),
        swapped(3, 4),
        swapped(6, 7),
        edited(3, id="other"),
        edited(4, choices=CHAT[3]["choices"]),
        edited(4, choices=chunk(call(id="call_1", function={"arguments": "{"}))["choices"]),
        edited(4, choices=chunk(call(function={"name": "f", "arguments": "{"}))["choices"]),
        edited(4, choices=chunk({"tool_calls": [{"function": {"arguments": "{"}}]})["choices"]),
        edited(2, choices=chunk({"content": "a", "surprise": 1})["choices"]),
        edited(2, choices=chunk({"content": ""})["choices"]),
        edited(2, choices=chunk({"role": "assistant", "content": "a"})["choices"]),
        edited(2, object="text_completion"),
        edited(2, choices=[]),
    ],
)
def test_a_chat_stream_out_of_order_fails(change: Change) -> None:
    with pytest.raises(WireError):
        chat.check_stream(chat_text(change(list(CHAT))))


def test_a_chat_stream_ends_with_done() -> None:
    with pytest.raises(WireError, match="DONE"):
        chat.check_stream(chat_text(CHAT).removesuffix("data: [DONE]\n\n"))


# ---- responses


def response(status: str, output: Sequence[Event] = ()) -> Event:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1.0,
        "model": "m",
        "status": status,
        "output": list(output),
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
    }


TEXT = {"type": "output_text", "text": "Héy", "annotations": []}
ITEM = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [TEXT]}
CALLED = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "f",
    "arguments": "{}",
    "status": "completed",
}
AT = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
CALL_AT = {"item_id": "fc_1", "output_index": 1}
RESPONSES: list[Event] = [
    {"type": "response.created", "response": response("in_progress")},
    {"type": "response.in_progress", "response": response("in_progress")},
    {
        "type": "response.output_item.added",
        "output_index": 0,
        "item": {**ITEM, "status": "in_progress", "content": []},
    },
    {"type": "response.content_part.added", **AT, "part": {**TEXT, "text": ""}},
    {"type": "response.output_text.delta", **AT, "delta": "Hé", "logprobs": []},
    {"type": "response.output_text.delta", **AT, "delta": "y", "logprobs": []},
    {"type": "response.output_text.done", **AT, "text": "Héy", "logprobs": []},
    {"type": "response.content_part.done", **AT, "part": TEXT},
    {"type": "response.output_item.done", "output_index": 0, "item": ITEM},
    {
        "type": "response.output_item.added",
        "output_index": 1,
        "item": {**CALLED, "status": "in_progress", "arguments": ""},
    },
    {"type": "response.function_call_arguments.delta", **CALL_AT, "delta": "{}"},
    {"type": "response.function_call_arguments.done", **CALL_AT, "name": "f", "arguments": "{}"},
    {"type": "response.output_item.done", "output_index": 1, "item": CALLED},
    {"type": "response.completed", "response": response("completed", [ITEM, CALLED])},
]


def responses_text(events: Sequence[Event]) -> str:
    frames = [
        f"event: {event['type']}\ndata: {json.dumps({'sequence_number': number, **event})}\n\n"
        for number, event in enumerate(events)
    ]
    return "".join(frames) + "data: [DONE]\n\n"


def test_a_responses_stream_comes_to_its_response() -> None:
    assert responses.check_stream(responses_text(RESPONSES))["output"] == [ITEM, CALLED]


@pytest.mark.parametrize(
    "change",
    [
        *(without(place) for place in range(len(RESPONSES))),
        swapped(0, 1),
        swapped(3, 4),
        swapped(4, 5),
        swapped(7, 8),
        swapped(8, 9),
        swapped(12, 13),
        edited(4, item_id="msg_2"),
        edited(4, output_index=1),
        edited(4, content_index=1),
        edited(4, sequence_number=9),
        edited(6, text="other"),
        edited(13, response=response("completed", [ITEM])),
        edited(13, response={**response("completed", [ITEM, CALLED]), "id": "resp_2"}),
        edited(4, surprise=1),
        edited(11, name="g"),
    ],
)
def test_a_responses_stream_out_of_order_fails(change: Change) -> None:
    with pytest.raises(WireError):
        responses.check_stream(responses_text(change(list(RESPONSES))))


def test_the_event_line_of_a_responses_stream_is_its_type() -> None:
    with pytest.raises(WireError):
        responses.check_stream(responses_text(RESPONSES).replace("event: response.created", "event: response.begun"))


# ---- messages

START: Event = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 0},
}


def block_delta(index: int, **delta: Any) -> Event:
    return {"type": "content_block_delta", "index": index, "delta": delta}


MESSAGES: list[Event] = [
    {"type": "message_start", "message": START},
    {"type": "ping"},
    {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "thinking", "thinking": "", "signature": ""},
    },
    block_delta(0, type="thinking_delta", thinking="hm"),
    block_delta(0, type="signature_delta", signature="s"),
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": "", "citations": None}},
    block_delta(1, type="text_delta", text="Hé"),
    {"type": "content_block_stop", "index": 1},
    {
        "type": "content_block_start",
        "index": 2,
        "content_block": {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}},
    },
    block_delta(2, type="input_json_delta", partial_json='{"a"'),
    block_delta(2, type="input_json_delta", partial_json=":1}"),
    {"type": "content_block_stop", "index": 2},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": {"output_tokens": 5},
    },
    {"type": "message_stop"},
]


def messages_text(events: Sequence[Event]) -> str:
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)


def test_a_messages_stream_comes_to_its_message() -> None:
    message = messages.check_stream(messages_text(MESSAGES))
    assert message["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "Hé", "citations": None},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}},
    ]
    assert message["stop_reason"] == "tool_use"
    assert message["usage"] == {"input_tokens": 1, "output_tokens": 5}


@pytest.mark.parametrize(
    "change",
    [
        *(without(place) for place in (0, 2, 5, 6, 8, 9, 12, 13, 14)),
        swapped(2, 3),
        swapped(5, 6),
        swapped(7, 10),
        swapped(13, 14),
        edited(7, index=0),
        edited(7, surprise=1),
        edited(7, delta={"type": "text_delta"}),
        edited(0, message={**START, "stop_reason": "end_turn"}),
        lambda events: [*events, {"type": "error", "error": {"type": "api_error", "message": "m"}}],
    ],
)
def test_a_messages_stream_out_of_order_fails(change: Change) -> None:
    with pytest.raises(WireError):
        messages.check_stream(messages_text(change(list(MESSAGES))))
