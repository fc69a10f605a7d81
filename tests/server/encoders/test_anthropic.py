"""Deltas as Anthropic's messages: valid to the SDK, whole and streamed the same, wherever the deltas are cut."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from anthropic.types import Message
from hypothesis import given, settings
from hypothesis import strategies as st

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
from stentor.server.api.anthropic.encoder import MessageShape, MessageStream, whole_message
from stentor.server.common.errors import GenerationFailed
from stentor.tests.examples import examples
from stentor.tests.wire.messages import check_stream
from stentor.tests.wire.validate import assert_same_answer, check_object, frames_of

SHAPE = MessageShape("msg_1", "fake", prompt_tokens=9, in_context=False)
PROMPT = PromptProcessed(4, None)
STOP = Finish(0, "stop", None, None)


def text(said: str, tokens: int = 1) -> Text:
    return Text(0, said, [1] * tokens, None)


def thought(said: str) -> Reasoning:
    return Reasoning(0, said, [1], None)


def call(arguments: str, number: int = 0, name: str = "look", id: str | None = "toolu_1") -> list[Delta]:
    pieces = [ToolCallArguments(0, number, piece) for piece in arguments]
    return [ToolCallStart(0, number, name, id), *pieces, ToolCallEnd(0, number)]


def whole(deltas: list[Delta], shape: MessageShape = SHAPE) -> dict[str, Any]:
    async def batches() -> AsyncIterator[list[Delta]]:
        for delta in deltas:
            yield [delta]

    message = msgspec.json.encode(asyncio.run(whole_message(shape, batches())))
    check_object(Message, message)
    found: dict[str, Any] = json.loads(message)
    return found


def streamed(deltas: list[Delta], shape: MessageShape = SHAPE, together: int = 1) -> dict[str, Any]:
    stream = MessageStream(shape)
    parts = [stream.encode(deltas[at : at + together]) for at in range(0, len(deltas), together)]
    return check_stream(b"".join((*parts, stream.end())))


def both(deltas: list[Delta], shape: MessageShape = SHAPE) -> dict[str, Any]:
    message = whole(deltas, shape)
    assert_same_answer(message, streamed(deltas, shape))
    return message


def kinds(message: dict[str, Any]) -> list[str]:
    return [block["type"] for block in message["content"]]


def test_thinking_text_and_calls_are_blocks_in_their_order() -> None:
    message = both(
        [PROMPT, thought("Hm. "), thought("So."), text("I look."), *call('{"at":"a"}'), *call("{}", 1, "wait"), STOP]
    )
    assert kinds(message) == ["thinking", "text", "tool_use", "tool_use"]
    thinking, said, first, second = message["content"]
    assert thinking["thinking"] == "Hm. So."
    assert thinking["signature"]
    assert said["text"] == "I look."
    assert (first["name"], first["input"], first["id"]) == ("look", {"at": "a"}, "toolu_1")
    assert (second["name"], second["input"]) == ("wait", {}), "no arguments are an empty object"
    assert message["stop_reason"] == "tool_use"
    assert message["usage"] == {
        "input_tokens": 5,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 3,
        "output_tokens_details": {"thinking_tokens": 2},
    }


def test_a_call_without_an_id_of_the_model_s_gets_one() -> None:
    first, second = whole([PROMPT, *call("{}", id=None), *call("{}", 1, id=None), STOP])["content"]
    assert first["id"].startswith("toolu_")
    assert first["id"] != second["id"]


def test_white_space_between_other_blocks_is_no_block_but_no_other_text_is_lost() -> None:
    message = both([PROMPT, thought("Hm."), text("\n\n"), *call("{}"), text("\n"), *call("{}", 1), text(" \n"), STOP])
    assert kinds(message) == ["thinking", "tool_use", "tool_use"]
    assert both([PROMPT, *call("{}"), text("\n"), text(" Done."), text(" "), STOP])["content"][1]["text"] == "\n Done. "
    assert both([PROMPT, text(" "), text("\n"), STOP])["content"] == [{"type": "text", "text": " \n"}]
    assert both([PROMPT, text(""), STOP])["content"] == []
    between = both([PROMPT, text(" "), *call("{}"), text("Done."), thought("Hm."), text(" "), thought("So."), STOP])
    assert kinds(between) == ["tool_use", "text", "thinking"]
    assert between["content"][1]["text"] == "Done."


def test_a_signature_is_that_of_the_text() -> None:
    one, same, other = (whole([PROMPT, *map(thought, said), STOP]) for said in (["a", "b"], ["ab"], ["ac"]))
    signatures = [message["content"][0]["signature"] for message in (one, same, other)]
    assert signatures[0] == signatures[1] != signatures[2]


def test_thinking_that_is_to_be_omitted_leaves_an_empty_block() -> None:
    shape = MessageShape("msg_1", "fake", 9, in_context=False, thinking="empty")
    message = both([PROMPT, thought("secret"), text("Yes."), STOP], shape)
    assert kinds(message) == ["thinking", "text"]
    assert message["content"][0]["thinking"] == ""
    assert message["usage"]["output_tokens_details"]["thinking_tokens"] == 1
    shape = MessageShape("msg_1", "fake", 9, in_context=False, thinking="never")
    assert kinds(both([PROMPT, thought("secret"), text("Yes."), STOP], shape)) == ["text"]


def test_of_a_warm_up_nothing_is_said() -> None:
    shape = MessageShape("msg_1", "fake", 9, in_context=False, warm_up=True)
    message = both([PROMPT, thought("a"), text("b"), *call("{}"), Finish(0, "length", None, None)], shape)
    assert (message["content"], message["stop_reason"]) == ([], "max_tokens")
    assert (message["usage"]["output_tokens"], message["usage"]["cache_read_input_tokens"]) == (0, 4)


@pytest.mark.parametrize(
    ("finish", "in_context", "reason", "sequence"),
    [
        (STOP, False, "tool_use", None),
        (Finish(0, "stop", 17, None), False, "tool_use", None),
        (Finish(0, "stop", "END", None), False, "stop_sequence", "END"),
        (Finish(0, "length", None, None), False, "max_tokens", None),
        (Finish(0, "length", None, None), True, "model_context_window_exceeded", None),
        (STOP, True, "tool_use", None),
    ],
)
def test_how_it_ended_is_said(finish: Finish, in_context: bool, reason: str, sequence: str | None) -> None:
    shape = MessageShape("msg_1", "fake", 9, in_context)
    message = both([PROMPT, *call("{}"), finish], shape)
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)
    if finish is STOP:
        assert both([PROMPT, text("a"), finish], shape)["stop_reason"] == "end_turn"


def test_of_a_call_that_is_cut_short_the_input_has_what_is_complete_and_the_stream_what_there_was() -> None:
    cut: list[Delta] = [PROMPT, *call('{"n": [1, 2], "at": "ab')[:-1], Finish(0, "length", None, None)]
    assert whole(cut)["content"][0]["input"] == {"n": [1, 2]}
    assert streamed(cut)["content"][0]["input"] == '{"n": [1, 2], "at": "ab'


def test_of_an_input_that_is_no_json_a_stream_has_what_begins_one() -> None:
    broken: list[Delta] = [PROMPT, *call('{"a": "x\ny", "b": nope, "c": 1}'), STOP]
    assert whole(broken)["content"][0]["input"] == {"a": "x\ny"}
    assert streamed(broken)["content"][0]["input"] == '{"a": "x\\u000ay", "b": n'


def test_a_failure_ends_the_stream_and_the_whole_message_is_an_error() -> None:
    failed: list[Delta] = [PROMPT, text("a"), Finish(0, "error", None, "why"), text("never")]
    stream = MessageStream(SHAPE)
    frames = frames_of(stream.encode(failed))
    assert stream.failed
    assert frames[-1].event == "error"
    with pytest.raises(GenerationFailed):
        whole(failed)


def test_an_answer_without_an_end_is_a_failure() -> None:
    with pytest.raises(GenerationFailed):
        whole([PROMPT, text("a")])


TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
VALUES = st.recursive(st.none() | st.integers() | TEXTS, lambda inner: st.lists(inner, max_size=3), max_leaves=5)
ARGUMENTS = st.dictionaries(TEXTS, VALUES, max_size=3)


@st.composite
def answers(draw: st.DrawFn) -> tuple[list[Delta], str, str, list[dict[str, Any]]]:
    """Deltas of one choice, its text, what it thought, and what it called."""
    deltas: list[Delta] = [PROMPT]
    said, thinks, inputs = "", "", []
    for kind in draw(st.lists(st.sampled_from(["text", "text", "thought", "call"]), max_size=8)):
        if kind == "call":
            inputs.append(draw(ARGUMENTS))
            deltas += call(json.dumps(inputs[-1]), len(inputs) - 1, id=f"toolu_{len(inputs)}")
            continue
        piece = draw(TEXTS)
        deltas.append(text(piece) if kind == "text" else thought(piece))
        said, thinks = (said + piece, thinks) if kind == "text" else (said, thinks + piece)
    return [*deltas, draw(st.sampled_from([STOP, Finish(0, "length", None, None)]))], said, thinks, inputs


@settings(max_examples=examples(40, 400), deadline=None)
@given(answer=answers(), together=st.integers(1, 7))
def test_whatever_comes_is_valid_the_same_both_ways_and_whole(answer: Any, together: int) -> None:
    deltas, said, thinks, inputs = answer
    message = whole(deltas)
    assert_same_answer(message, streamed(deltas, together=together))
    blocks = message["content"]
    shown = "".join(block["text"] for block in blocks if block["type"] == "text")
    assert "".join(shown.split()) == "".join(said.split()), "but for white space, nothing is lost"
    assert "".join(block["thinking"] for block in blocks if block["type"] == "thinking") == thinks
    assert [block["input"] for block in blocks if block["type"] == "tool_use"] == inputs
    assert all(first != second for first, second in zip(kinds(message), kinds(message)[1:], strict=False)) or inputs
