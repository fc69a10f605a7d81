"""Deltas of every kind, in every order and cut in every way, as events that the SDK takes."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response

from stentor.protocols.ipc.deltas import (
    Delta,
    Finish,
    PromptProcessed,
    Reasoning,
    Text,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from stentor.protocols.openai.responses.objects import ResponseFailure, ResponseObject
from stentor.protocols.openai.responses.tools import client_functions
from stentor.server.api.responses.encoder import ResponseEncoder
from stentor.server.api.responses.events import ResponseFrames
from stentor.server.api.responses.ids import Ids
from stentor.server.generation.logprobs import TokenNames
from stentor.tests.fakes import byte_tokenizer, logprobs_of
from stentor.tests.server.responses.shapes import EXTENSIONS
from stentor.tests.wire.responses import check_stream
from stentor.tests.wire.validate import check_object

NAMES = TokenNames(byte_tokenizer(), False)


def whole(frames: ResponseFrames, events: list[bytes]) -> str:
    encoded = frames.encode(events)
    assert isinstance(encoded, bytes), "they are few"
    return (encoded + frames.end()).decode()


def encoder(**options: Any) -> ResponseEncoder:
    response = ResponseObject(id="resp_1", created_at=1, model="fake")
    return ResponseEncoder(response, Ids("resp_1").new, **options)


def reported(made: ResponseEncoder, batches: list[list[Delta]]) -> tuple[str, dict[str, Any]]:
    """The stream, checked, and the response that it comes to."""
    events = made.begin()
    made.begin_turn(7, NAMES)
    for batch in batches:
        events += made.take(batch)
    events += made.complete()
    frames = ResponseFrames()
    text = whole(frames, events)
    answer = check_stream(text, EXTENSIONS)
    check_object(Response, answer, EXTENSIONS)
    return text, answer


def pieces(text: str) -> st.SearchStrategy[list[str]]:
    """The text, cut anywhere."""
    cuts = st.lists(st.integers(0, len(text)), max_size=4).map(sorted)
    return cuts.map(lambda at: [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)])


def call(number: int, name: str, arguments: list[str], ends: bool = True) -> list[Delta]:
    end: list[Delta] = [ToolCallEnd(0, number)] if ends else []
    return [
        ToolCallStart(0, number, name, None),
        *(ToolCallArguments(0, number, piece) for piece in arguments),
        *end,
    ]


@settings(deadline=None)
@given(
    thought=pieces("Höw 😀?"),
    said=pieces("Let me see — 好."),
    arguments=pieces('{"city":"Zürich {"}'),
    more=pieces("a\nb 😀"),
    reason=st.sampled_from(["stop", "length"]),
    together=st.booleans(),
)
def test_any_order_of_deltas_makes_a_stream_that_the_sdk_takes(
    thought: list[str], said: list[str], arguments: list[str], more: list[str], reason: Any, together: bool
) -> None:
    deltas: list[Delta] = [PromptProcessed(3, None)]
    deltas += [Reasoning(0, piece, [1], [logprobs_of(1, 1)]) for piece in thought]
    deltas += [Text(0, piece, [2], [logprobs_of(2, 1)]) for piece in said]
    deltas += call(0, "get_weather", arguments)
    deltas += [Text(0, "", [3, 4], [logprobs_of(3, 1), logprobs_of(4, 1)])]
    deltas += call(1, "run", more)
    deltas += [Text(0, "Done.", [5], [logprobs_of(5, 1)]), Finish(0, reason, None, None)]
    batches = [deltas] if together else [[delta] for delta in deltas]
    made = encoder(top_logprobs=1, tools=client_functions([{"type": "custom", "name": "run"}]))
    _, answer = reported(made, batches)
    reasoning, message, function, custom, last = answer["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Höw 😀?"}]
    assert message["content"][0]["text"] == "Let me see — 好."
    assert (function["name"], function["arguments"]) == ("get_weather", '{"city":"Zürich {"}')
    assert (custom["type"], custom["input"]) == ("custom_tool_call", "a\nb 😀")
    assert last["status"] == ("completed" if reason == "stop" else "incomplete")
    assert [entry["logprob"] for entry in last["content"][0]["logprobs"]] == [-0.25]
    assert answer["usage"]["output_tokens_details"] == {"reasoning_tokens": len(thought)}
    assert answer["usage"]["output_tokens"] == len(thought) + len(said) + 3
    assert answer["usage"]["input_tokens_details"]["cached_tokens"] == 3


def test_the_same_batches_make_the_same_events() -> None:
    batches: list[list[Delta]] = [[Text(0, "a", [1], None)], call(0, "f", ["{}"]), [Finish(0, "stop", None, None)]]
    assert reported(encoder(), batches)[1]["output"] == reported(encoder(), batches)[1]["output"]


def test_a_call_that_was_cut_off_is_incomplete() -> None:
    _, answer = reported(encoder(), [[*call(0, "f", ['{"a":'], ends=False), Finish(0, "length", None, None)]])
    (item,) = answer["output"]
    assert (item["status"], item["arguments"]) == ("incomplete", '{"a":')
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


def test_reasoning_that_was_cut_off_is_incomplete() -> None:
    _, answer = reported(encoder(), [[Reasoning(0, "Let me", [1], None), Finish(0, "length", None, None)]])
    (item,) = answer["output"]
    assert (item["type"], item["status"]) == ("reasoning", "incomplete")
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


def test_an_empty_answer_is_a_message_without_text() -> None:
    _, answer = reported(encoder(), [[Finish(0, "stop", None, None)]])
    assert answer["output"][0]["content"][0]["text"] == ""


def test_a_failure_ends_what_is_open_and_says_why_without_secrets() -> None:
    made = encoder()
    events = made.begin()
    made.begin_turn(7, NAMES)
    events += made.take([Text(0, "half", [1], None), Finish(0, "error", None, "0xdeadbeef in /srv/secret")])
    events += made.complete()
    text = whole(ResponseFrames(), events)
    answer = check_stream(text, EXTENSIONS)
    assert (answer["status"], answer["error"]["code"]) == ("failed", "server_error")
    assert "deadbeef" not in text
    assert answer["output"][0]["status"] == "incomplete"


def test_sealed_reasoning_goes_with_the_item() -> None:
    made = encoder(seal=lambda text: f"sealed {len(text)}")
    _, answer = reported(
        made, [[Reasoning(0, "why", [1], None), Text(0, "so", [2], None), Finish(0, "stop", None, None)]]
    )
    assert answer["output"][0]["encrypted_content"] == "sealed 3"


def test_a_failure_before_the_first_turn_has_no_usage() -> None:
    made = encoder()
    made.begin()
    (event,) = made.fail(ResponseFailure("server_error", "no"))
    assert json.loads(event)["response"]["usage"] is None
