"""Reasoning and tool calls as chat completions: valid to the SDK, and the stream is what the whole says."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from openai.types.chat import ChatCompletion

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
from stentor.protocols.openai.tools import OfferedTool, ToolUse
from stentor.server.api.chat.shape import ChatShape
from stentor.server.api.chat.stream import ChatStream
from stentor.server.api.chat.whole import chat_answer
from stentor.server.common.loop_turns import LoopTurns
from stentor.server.generation.logprobs import TokenNames
from stentor.server.http.whole_answer import AnswerBudget
from stentor.server.overload.memory_budget import MemoryBudget
from stentor.tests.examples import examples
from stentor.tests.fakes import byte_tokenizer, logprobs_of
from stentor.tests.wire.chat import check_stream
from stentor.tests.wire.validate import CHAT_EXTENSIONS, assert_same_answer, check_object

N = 2
TOOLS = ToolUse(
    tools=(
        OfferedTool("f", None, None, False, False, "tools[0]"),
        OfferedTool("c", None, None, False, True, "tools[1]"),
    ),
    mode="auto",
)
NAMES = TokenNames(byte_tokenizer(), False)
SHAPE = ChatShape("chatcmpl-1", 1, "m", N, NAMES, include_usage=True, prompt=[1, 2], tools=TOOLS)
SHAPES = [
    SHAPE,
    replace(SHAPE, top_logprobs=1),
    replace(SHAPE, token_ids=True, include_reasoning=False),
    replace(SHAPE, continuous_usage=True),
    replace(SHAPE, tools=msgspec.structs.replace(TOOLS, named=True)),
]


def whole(shape: ChatShape, deltas: list[Delta]) -> dict[str, Any]:
    async def batches() -> AsyncIterator[list[Delta]]:
        yield deltas

    room = AnswerBudget(1 << 20, MemoryBudget(0).share())
    body = b"".join(asyncio.run(chat_answer(shape, batches(), room, LoopTurns())).pieces())
    check_object(ChatCompletion, body, CHAT_EXTENSIONS)
    answer: dict[str, Any] = json.loads(body)
    return answer


def streamed(shape: ChatShape, deltas: list[Delta], size: int) -> bytes:
    stream = ChatStream(shape)
    frames = [stream.encode(deltas[place : place + size]) for place in range(0, len(deltas), size)]
    assert not stream.failed
    return b"".join(frames) + stream.end()


def one_choice(index: int, said: list[tuple[str, str]], reason: str) -> list[Delta]:
    """``said``: kinds and texts; a call's text is its arguments, in two pieces."""
    deltas: list[Delta] = []
    calls = 0
    for kind, text in said:
        tokens = [7] * len(text[:2])
        logprobs = [logprobs_of(7, 1) for _ in tokens]
        if kind == "text":
            deltas.append(Text(index, text, tokens, logprobs))
        elif kind == "reasoning":
            deltas.append(Reasoning(index, text, tokens, logprobs))
        else:
            deltas += [Text(index, "", tokens, logprobs), ToolCallStart(index, calls, kind, None)]
            halves = (text[: len(text) // 2], text[len(text) // 2 :])
            deltas += [ToolCallArguments(index, calls, half) for half in halves if half]
            deltas.append(ToolCallEnd(index, calls))
            calls += 1
    return [*deltas, Finish(index, reason, None, None)]  # type: ignore[arg-type]  # it is one of them


SAID = st.lists(st.tuples(st.sampled_from(["text", "reasoning", "f", "c"]), st.text(max_size=4)), max_size=5)


@settings(deadline=None, max_examples=examples(40))
@given(st.sampled_from(SHAPES), SAID, SAID, st.sampled_from(["stop", "length"]), st.integers(1, 9))
def test_a_stream_is_valid_and_says_what_the_whole_says(
    shape: ChatShape, first: list[tuple[str, str]], second: list[tuple[str, str]], reason: str, size: int
) -> None:
    deltas = [PromptProcessed(1, None), *one_choice(0, first, reason), *one_choice(1, second, "stop")]
    answer = whole(shape, deltas)
    found = check_stream(streamed(shape, deltas, size).replace(b'"prompt_token_ids":[1,2],', b""))
    answer.pop("prompt_token_ids", None)
    for choice in answer["choices"]:  # of a choice without tokens a stream says nothing
        if choice["logprobs"] is not None and not choice["logprobs"]["content"]:
            choice["logprobs"] = None
        choice["token_ids"] = choice.get("token_ids") or None
    assert_same_answer(answer, found)
    tokens = sum(len(text[:2]) for _, text in first + second)
    reasoned = sum(len(text[:2]) for kind, text in first + second if kind == "reasoning")
    assert answer["usage"]["completion_tokens"] == tokens
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": reasoned}
    for choice, said, ended in zip(answer["choices"], (first, second), (reason, "stop"), strict=True):
        calls = [(kind, text) for kind, text in said if kind in "fc"]
        shown = choice["message"].get("tool_calls", [])
        assert [call["type"] for call in shown] == [{"f": "function", "c": "custom"}[kind] for kind, _ in calls]
        called = ended == "stop" and bool(calls) and not shape.tools.named
        assert choice["finish_reason"] == ("tool_calls" if called else ended)
        text = "".join(text for kind, text in said if kind == "text")
        assert choice["message"]["content"] == (text or (None if calls else ""))
        reasoning = "".join(text for kind, text in said if kind == "reasoning")
        assert choice["message"].get("reasoning", "") == (reasoning if shape.include_reasoning else "")


def test_reasoning_has_both_names_and_calls_have_ids_of_their_own() -> None:
    said = [("reasoning", "hm"), ("f", "{}"), ("f", '{"a":1}'), ("c", "free text")]
    (choice, _) = whole(SHAPE, [*one_choice(0, said, "stop"), *one_choice(1, [], "stop")])["choices"]
    message = choice["message"]
    assert message["reasoning"] == message["reasoning_content"] == "hm"
    assert message["content"] is None
    first, second, third = message["tool_calls"]
    assert first["function"] == {"name": "f", "arguments": "{}"}
    assert third["custom"] == {"name": "c", "input": "free text"}
    assert len({call["id"] for call in (first, second, third)}) == 3


def test_the_models_own_ids_are_kept() -> None:
    deltas: list[Delta] = [ToolCallStart(0, 0, "f", "functions.f:0"), ToolCallEnd(0, 0), Finish(0, "stop", None, None)]
    shape = replace(SHAPE, n=1)
    (choice,) = whole(shape, deltas)["choices"]
    assert choice["message"]["tool_calls"][0]["id"] == "functions.f:0"
    (choice,) = check_stream(streamed(shape, deltas, 1))["choices"]
    assert choice["message"]["tool_calls"][0]["id"] == "functions.f:0"


def test_who_asked_with_functions_reads_one_function_call() -> None:
    shape = replace(SHAPE, n=1, tools=msgspec.structs.replace(TOOLS, legacy=True))
    deltas = one_choice(0, [("f", '{"a":1}'), ("f", "{}")], "stop")
    (choice,) = whole(shape, deltas)["choices"]
    assert choice["message"]["function_call"] == {"name": "f", "arguments": '{"a":1}'}
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "function_call"
    pieces = []
    for frame in streamed(shape, deltas, 1).decode().split("\n\n"):
        if frame.startswith("data: {"):
            pieces += [part["delta"].get("function_call") for part in json.loads(frame[6:])["choices"]]
    pieces = [piece for piece in pieces if piece is not None]
    assert pieces[0] == {"name": "f", "arguments": ""}
    assert "".join(piece["arguments"] for piece in pieces) == '{"a":1}'


@pytest.mark.parametrize("tools", [TOOLS, ToolUse()])
def test_the_role_comes_with_content_only_where_there_must_be_some(tools: ToolUse) -> None:
    shape = replace(SHAPE, tools=tools)
    opening = ChatStream(shape).encode([PromptProcessed(0, None)]).decode()
    delta = json.loads(opening.split("\n\n")[0][6:])["choices"][0]["delta"]
    assert delta == {"role": "assistant", "content": "" if tools.mode == "none" else None}


@pytest.mark.parametrize(
    ("said", "ending"),
    [([], {"content": ""}), ([("text", "a")], {}), ([("f", "{}")], {}), ([("reasoning", "hm")], {"content": ""})],
)
def test_a_choice_that_says_nothing_where_it_may_call_ends_with_an_empty_text(said: Any, ending: Any) -> None:
    stream = ChatStream(replace(SHAPE, n=1))
    frames = stream.encode([PromptProcessed(0, None), *one_choice(0, said, "stop")]).decode()
    assert json.loads(frames.split("\n\n")[-2][6:])["choices"][0]["delta"] == ending
