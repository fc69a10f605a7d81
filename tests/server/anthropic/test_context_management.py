"""What ``context_management`` takes out of conversations, and the summaries that it puts in their place."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from anthropic.types.beta import BetaMessage, BetaMessageTokensCount, BetaRawMessageStreamEvent

from stentor.protocols.anthropic.content import InputMessage, ThinkingBlock
from stentor.protocols.anthropic.context_management import ContextManagement, ThinkingCleared
from stentor.server.api.anthropic.context_edits import CLEARED, edit
from stentor.server.http import sse
from stentor.tests.fakes import EOS, FakeEngine, fake_state, says
from stentor.tests.server.harness import in_memory
from stentor.tests.wire.messages import check_stream
from stentor.tests.wire.validate import assert_same_answer, check_object

pytestmark = pytest.mark.anyio

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
CLEAR = "clear_tool_uses_20250919"
THINKING = "clear_thinking_20251015"
COMPACT = "compact_20260112"


def told(name: str, index: int) -> str:
    return f"{name} says {index}: " + "rain, " * 12


def calls(*names: str) -> list[dict[str, Any]]:
    """A question, and a call of each tool with its result."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is the weather?"}]
    for index, name in enumerate(names):
        use = {"type": "tool_use", "id": f"toolu_{index}", "name": name, "input": {"place": f"town {index}"}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{index}", "content": told(name, index)}
        messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    return messages


async def post(engine: FakeEngine, *edits: dict[str, Any], path: str = MESSAGES, status: int = 200, **body: Any) -> Any:
    wanted: dict[str, Any] = {"model": "fake", "context_management": {"edits": [*edits]}, **body}
    if path == MESSAGES:
        wanted.setdefault("max_tokens", 12)
    async with in_memory(fake_state(engine)) as client:
        response = await client.post(path, json=wanted)
    assert response.status_code == status, response.text
    return response


def prompts_of(engine: FakeEngine) -> list[str]:
    return [bytes(stream.prompt).decode() for stream in engine.streams]


def results_of(prompt: str) -> list[str]:
    return re.findall("<tool_response>\n(.*)\n</tool_response>", prompt)


async def cleared(*names: str, **edit: Any) -> tuple[list[str], dict[str, Any] | None]:
    """The results that the model reads of calls of ``names``, and the edit that was applied."""
    engine = FakeEngine(max_model_len=4096, answer=says("ok"))
    answer = check_object(BetaMessage, (await post(engine, {"type": CLEAR, **edit}, messages=calls(*names))).content)
    assert answer.context_management is not None
    applied = answer.context_management.applied_edits
    return results_of(prompts_of(engine)[0]), applied[0].model_dump() if applied else None


async def test_the_oldest_results_are_cleared_and_their_tokens_counted() -> None:
    found, applied = await cleared("a", "b", "c", "d", "e", trigger={"type": "input_tokens", "value": 10})
    assert found == [CLEARED, CLEARED, told("c", 2), told("d", 3), told("e", 4)]
    assert applied == {
        "type": CLEAR,
        "cleared_tool_uses": 2,
        "cleared_input_tokens": 2 * (len(told("a", 0)) - len(CLEARED)),
    }


@pytest.mark.parametrize(
    ("edit", "left"),
    [
        ({"keep": {"type": "tool_uses", "value": 0}}, ""),
        ({"keep": {"type": "tool_uses", "value": 1}}, "c"),
        ({"keep": {"type": "tool_uses", "value": 9}}, "abc"),
        ({"keep": {"type": "tool_uses", "value": 1}, "exclude_tools": ["a", "z"]}, "ac"),
        ({"keep": {"type": "tool_uses", "value": 1}, "trigger": {"type": "tool_uses", "value": 2}}, "c"),
        ({"keep": {"type": "tool_uses", "value": 1}, "trigger": {"type": "tool_uses", "value": 3}}, "abc"),
        ({"keep": {"type": "tool_uses", "value": 1}, "trigger": {"type": "input_tokens", "value": 4000}}, "abc"),
        ({"keep": {"type": "tool_uses", "value": 1}, "trigger": None}, "abc"),
        ({"keep": {"type": "tool_uses", "value": 1}, "clear_at_least": {"type": "input_tokens", "value": 99}}, "abc"),
    ],
)
async def test_what_is_kept_is_what_the_edit_says(edit: dict[str, Any], left: str) -> None:
    found, applied = await cleared("a", "b", "c", **{"trigger": {"type": "input_tokens", "value": 1}, **edit})
    assert [result[0] for result in found if result != CLEARED] == [*left]
    assert (applied or {"cleared_tool_uses": 0})["cleared_tool_uses"] == 3 - len(left)


async def test_without_a_trigger_the_limit_is_three_quarters_of_a_small_context() -> None:
    engine = FakeEngine(max_model_len=2000, answer=says("ok"))
    keep = {"type": "tool_uses", "value": 0}
    await post(engine, {"type": CLEAR, "keep": keep}, messages=calls(*"abc"))
    await post(engine, {"type": CLEAR, "keep": keep}, messages=calls(*"abcdefgh"))
    few, many = (results_of(prompt) for prompt in prompts_of(engine))
    assert CLEARED not in few
    assert many == [CLEARED] * 8


@pytest.mark.parametrize(("inputs", "left"), [(None, "ab"), (True, ""), (["b", "z"], "a")])
async def test_inputs_of_cleared_calls_are_cleared_where_the_client_wants_it(inputs: Any, left: str) -> None:
    asked = {"type": CLEAR, "trigger": {"type": "tool_uses", "value": 0}, "clear_tool_inputs": inputs}
    edits = msgspec.convert({"edits": [{**asked, "keep": {"type": "tool_uses", "value": 0}}]}, ContextManagement)
    done = await edit(msgspec.convert(calls("a", "b"), list[InputMessage]), edits, _length, 1000)
    uses = [block for message in done.messages if message.role == "assistant" for block in message.blocks]
    assert "".join(use.name for use in uses if use.input) == left  # type: ignore[union-attr]


async def _length(messages: Sequence[InputMessage]) -> int:
    return len(msgspec.json.encode(messages))


def thinking_turns() -> list[InputMessage]:
    """Three turns; in the second the model thinks again when a tool has answered."""

    def thought(text: str) -> dict[str, Any]:
        return {"type": "thinking", "thinking": text, "signature": "x"}

    use = {"type": "tool_use", "id": "1", "name": "a", "input": {}}
    said = {"type": "text", "text": "Said."}
    conversation = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": [thought("1"), {"type": "redacted_thinking", "data": "x"}, said]},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": [thought("2"), use]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "done"}]},
        {"role": "assistant", "content": [thought("3"), said]},
        {"role": "user", "content": "three"},
        {"role": "assistant", "content": [thought("4"), said]},
        {"role": "user", "content": "four"},
    ]
    return msgspec.convert(conversation, list[InputMessage])


@pytest.mark.parametrize(
    ("keep", "left", "turns"),
    [
        (None, "4", 2),
        ({"type": "thinking_turns", "value": 2}, "234", 1),
        ({"type": "thinking_turns", "value": 3}, "1234", 0),
        ({"type": "all"}, "1234", 0),
        ("all", "1234", 0),
    ],
)
async def test_thinking_of_old_turns_is_cleared_a_loop_of_tools_is_one(keep: Any, left: str, turns: int) -> None:
    asked = {"type": THINKING, **({} if keep is None else {"keep": keep})}
    given = thinking_turns()
    done = await edit(given, msgspec.convert({"edits": [asked]}, ContextManagement), _length, 1000)
    blocks = [block for message in done.messages for block in message.blocks]
    assert "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock)) == left
    shorter = await _length(given) - await _length(done.messages)
    assert done.applied == ([ThinkingCleared(turns, shorter)] if turns else [])


async def test_counting_tells_the_tokens_before_and_after() -> None:
    engine = FakeEngine(max_model_len=4096)
    whole = calls(*"abcdef")
    edits = {"type": CLEAR, "trigger": {"type": "tool_uses", "value": 1}, "keep": {"type": "tool_uses", "value": 5}}
    count = check_object(BetaMessageTokensCount, (await post(engine, edits, path=COUNT, messages=whole)).content)
    plain = (await post(engine, path=COUNT, messages=whole)).json()
    assert count.context_management is not None
    assert count.context_management.original_input_tokens == plain["input_tokens"]
    assert count.input_tokens == plain["input_tokens"] - len(told("a", 0)) + len(CLEARED)
    assert not engine.streams


def summarizes(summary: str = "They asked for the weather.") -> FakeEngine:
    """Answers a wish for a summary by ``summary``, and all else by `ok`."""

    def answer(prompt: list[int], _index: int) -> list[int]:
        return [*(summary if b"Summarize" in bytes(prompt) else "ok").encode(), EOS]

    return FakeEngine(max_model_len=4096, answer=answer)


LONG = [
    {"role": "user", "content": "Tell me about rain."},
    {"role": "assistant", "content": "It is wet."},
    {"role": "user", "content": "And snow?"},
]
AT_ONCE = {"type": COMPACT, "trigger": {"type": "input_tokens", "value": 1}}
COMPACTED = "<user><summary>\nThey asked for the weather.\n</summary>\nAnd snow?\n"


async def test_a_long_conversation_is_answered_from_its_summary() -> None:
    engine = summarizes()
    response = await post(engine, AT_ONCE, messages=LONG)
    message = check_object(BetaMessage, response.content)
    assert [block.model_dump(exclude_none=True) for block in message.content] == [
        {"type": "compaction", "content": "They asked for the weather."},
        {"type": "text", "text": "ok"},
    ]
    wish, answer = prompts_of(engine)
    assert "It is wet." in wish
    assert answer == f"{COMPACTED}<assistant>"
    assert message.usage.input_tokens == len(answer)
    iterations = message.usage.iterations
    assert iterations is not None
    assert [(each.type, each.input_tokens, each.output_tokens) for each in iterations] == [
        ("compaction", len(wish), len("They asked for the weather.") + 1),
        ("message", len(answer), 3),
    ]
    stream = await post(engine, AT_ONCE, messages=LONG, stream=True)
    assert_same_answer(response.json(), check_stream(stream.content, event=BetaRawMessageStreamEvent), ("id",))


async def test_the_next_request_goes_on_from_the_summary_alone() -> None:
    engine = summarizes()
    said = (await post(engine, AT_ONCE, messages=LONG)).json()["content"]
    behind = [{"role": "assistant", "content": said}, {"role": "user", "content": "Thanks."}]
    await post(engine, messages=[*LONG, *behind])
    await post(engine, messages=behind)
    _, _, whole, alone = prompts_of(engine)
    assert whole == f"{COMPACTED}<assistant>ok\n<user>Thanks.\n<assistant>"
    assert alone == whole.replace("\nAnd snow?", ""), "a client may leave out what was summarised"


async def test_a_client_may_look_at_the_summary_before_it_is_used() -> None:
    engine = summarizes()
    asked = {**AT_ONCE, "pause_after_compaction": True, "instructions": "Summarize in five words."}
    response = await post(engine, asked, messages=LONG)
    message = check_object(BetaMessage, response.content)
    assert message.stop_reason == "compaction"
    assert [block.type for block in message.content] == ["compaction"]
    (wish,) = prompts_of(engine)
    assert wish.endswith("<user>And snow?\nSummarize in five words.\n<assistant>")
    stream = await post(engine, asked, messages=LONG, stream=True)
    assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert_same_answer(response.json(), check_stream(stream.content, event=BetaRawMessageStreamEvent), ("id",))


async def test_a_client_that_streams_hears_of_the_server_while_the_summary_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.02)
    engine = summarizes()
    engine.delay = 0.01
    stream = (await post(engine, AT_ONCE, messages=LONG, stream=True)).text
    assert stream.startswith("event: ping\n")
    assert stream.index("event: ping") < stream.index("event: message_start") < stream.index("compaction_delta")


async def test_a_summary_that_cannot_be_begun_has_a_status_of_its_own_in_a_stream_too() -> None:
    response = await post(summarizes(), AT_ONCE, messages=LONG, system="x" * 5000, stream=True, status=400)
    assert response.json()["error"]["message"].startswith("prompt is too long: ")


async def test_an_answer_that_was_begun_goes_on_behind_the_summary() -> None:
    engine = summarizes()
    await post(engine, AT_ONCE, messages=[*LONG, {"role": "assistant", "content": "Snow is"}])
    assert prompts_of(engine)[1] == f"{COMPACTED}<assistant>Snow is"


async def test_a_short_conversation_stays_as_it_is() -> None:
    engine = summarizes()
    message = (await post(engine, {"type": COMPACT}, messages=LONG)).json()
    assert [block["type"] for block in message["content"]] == ["text"]
    assert "iterations" not in message["usage"]
    assert message["context_management"] == {"applied_edits": []}


async def test_without_a_summary_the_conversation_is_answered_whole() -> None:
    engine = summarizes(" ")
    message = check_object(BetaMessage, (await post(engine, AT_ONCE, messages=LONG)).content)
    assert message.content[0].model_dump(exclude_none=True) == {"type": "compaction"}
    assert "It is wet." in prompts_of(engine)[1]


async def test_the_oldest_messages_are_left_out_of_a_summary_that_has_no_room_for_them() -> None:
    engine = summarizes()
    messages = [
        {"role": role, "content": f"{number} " + "x" * 400} for number in range(9) for role in ("user", "assistant")
    ]
    await post(engine, AT_ONCE, messages=[*messages, {"role": "user", "content": "And snow?"}])
    wish, answer = prompts_of(engine)
    assert 2000 < len(wish) <= 4096 * 3 // 4
    assert "0 x" not in wish
    assert "8 x" in wish
    assert answer == f"{COMPACTED}<assistant>"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"context_management": {"edits": [AT_ONCE, AT_ONCE]}}, "context_management.edits[1].type"),
        ({"context_management": {"edits": [{"type": "forget"}]}}, "context_management.edits[0]"),
        (
            {"context_management": {"edits": [{"type": CLEAR, "keep": {"type": "tool_uses", "value": -1}}]}},
            "context_management.edits[0].keep.value",
        ),
        (
            {"context_management": {"edits": [{"type": THINKING, "keep": {"type": "thinking_turns", "value": 0}}]}},
            "context_management.edits[0].keep.value",
        ),
        ({"context_management": {"edits": [AT_ONCE] * 4}}, "context_management.edits"),
        (
            {"messages": [{"role": "user", "content": [{"type": "compaction", "content": "x"}]}]},
            "messages[0].content[0]",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "compaction", "content": ""}]}]},
            "messages[0].content",
        ),
    ],
)
async def test_a_wrong_field_is_named(fields: dict[str, Any], named: str) -> None:
    error = (await post(FakeEngine(), status=400, **{"messages": LONG, **fields})).json()["error"]
    assert error["type"] == "invalid_request_error"
    assert named in error["message"]
