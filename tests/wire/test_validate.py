"""The validator itself: what is right passes, and each kind of mistake fails."""

import json
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from openai.types.chat import ChatCompletion
from openai.types.responses import ResponseStreamEvent

from stentor.tests.wire.validate import (
    CHAT_EXTENSIONS,
    Frame,
    WireError,
    assert_same_answer,
    check_event,
    check_object,
    frames_of,
)

USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
CHOICE = {
    "index": 0,
    "message": {"role": "assistant", "content": "Hi"},
    "finish_reason": "stop",
    "logprobs": None,
}
COMPLETION = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [CHOICE],
    "usage": USAGE,
}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "Hi", "citations": None}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 2},
}
DELTA = {
    "type": "response.output_text.delta",
    "item_id": "msg_1",
    "output_index": 0,
    "content_index": 0,
    "delta": "Hi",
    "logprobs": [],
    "sequence_number": 3,
}


def with_choice(**fields: Any) -> dict[str, Any]:
    return {**COMPLETION, "choices": [{**CHOICE, **fields}]}


def with_message(**fields: Any) -> dict[str, Any]:
    return with_choice(message={**CHOICE["message"], **fields})  # type: ignore[dict-item]


def test_what_is_right_passes_and_comes_back_as_the_sdks_object() -> None:
    assert check_object(ChatCompletion, COMPLETION).choices[0].message.content == "Hi"
    assert check_object(ChatCompletion, json.dumps(COMPLETION).encode()).usage is not None
    assert check_object(Message, MESSAGE).stop_reason == "end_turn"
    assert check_event(ResponseStreamEvent, DELTA).delta == "Hi"
    assert check_event(RawMessageStreamEvent, {"type": "message_stop"}).type == "message_stop"


@pytest.mark.parametrize(
    "wrong",
    [
        {**COMPLETION, "created": "1"},
        {**COMPLETION, "created": 1.5},
        {name: value for name, value in COMPLETION.items() if name != "id"},
        {**COMPLETION, "object": "text_completion"},
        {**COMPLETION, "surprise": 1},
        with_choice(finish_reason="end"),
        with_choice(index=None),
        with_choice(surprise=None),
        with_message(surprise=1),
        with_message(role="user"),
        with_message(tool_calls=[{"id": "1", "type": "function", "function": {"name": "f"}}]),
        with_message(tool_calls=[{"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}]),
        with_message(tool_calls=[{"type": "function", "function": {"name": "f", "arguments": "{}"}}]),
        with_message(
            tool_calls=[{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}", "more": 1}}]
        ),
    ],
)
def test_each_kind_of_mistake_fails(wrong: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        check_object(ChatCompletion, wrong)


def test_fields_beyond_the_sdks_pass_only_where_they_are_documented() -> None:
    extended = with_message(reasoning="hm", reasoning_content="hm")
    extended["choices"][0]["stop_reason"] = None
    check_object(ChatCompletion, extended, CHAT_EXTENSIONS)
    with pytest.raises(WireError, match="reasoning"):
        check_object(ChatCompletion, extended, {**CHAT_EXTENSIONS, "ChatCompletionMessage": frozenset()})


def test_an_event_is_held_against_the_member_that_its_type_names() -> None:
    with pytest.raises(WireError, match="no event"):
        check_event(ResponseStreamEvent, {**DELTA, "type": "response.output_text.more"})
    with pytest.raises(WireError, match="ResponseTextDeltaEvent"):
        check_event(ResponseStreamEvent, {name: value for name, value in DELTA.items() if name != "logprobs"})
    with pytest.raises(WireError):
        check_event(ResponseStreamEvent, "[]")
    with pytest.raises(WireError):
        check_event(ResponseStreamEvent, "{")


def test_frames_are_read_and_comments_are_left_out() -> None:
    assert frames_of("event: a\ndata: {}\n\n: keep-alive\n\ndata: [DONE]\n\n") == [
        Frame("a", "{}"),
        Frame(None, "[DONE]"),
    ]
    assert frames_of(b"") == []


@pytest.mark.parametrize(
    "wrong", ["data: {}", "data: {}\n", "{}\n\n", "event: a\n\n", "data: a\ndata: b\n\n", "data:a\n\n"]
)
def test_a_malformed_frame_fails(wrong: str) -> None:
    with pytest.raises(WireError):
        frames_of(wrong)


def test_answers_are_compared_but_for_ids() -> None:
    assert_same_answer({"id": "a", "x": [{"id": 1, "y": 2}]}, {"id": "b", "x": [{"id": 2, "y": 2}]})
    with pytest.raises(WireError, match=r"x\[0\]\.y"):
        assert_same_answer({"x": [{"y": 2}]}, {"x": [{"y": 3}]})
    with pytest.raises(WireError):
        assert_same_answer({"x": [1]}, {"x": [1, 2]})
    with pytest.raises(WireError):
        assert_same_answer({"x": 1}, {})
