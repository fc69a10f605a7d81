"""What Anthropic's requests mean as chat requests, and which of them are refused, by which name."""

import json
from typing import Any

import pytest

from stentor.protocols.anthropic.request import messages_decoder
from stentor.protocols.common.decoding import decode
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.common.limits import Limits
from stentor.protocols.openai.chat import ChatRequest
from stentor.server.api.anthropic.translate import chat_request, in_their_names

HELLO = {"role": "user", "content": "hello"}
WEATHER = {"name": "weather", "description": "of a place", "input_schema": {"type": "object", "properties": {}}}
LIMITS = Limits(max_json_depth=9)


def translated(*, beta: bool = False, **fields: Any) -> ChatRequest:
    body = {"model": "m", "max_tokens": 2000, "messages": [HELLO], **fields}
    request = decode(messages_decoder, json.dumps(body).encode(), LIMITS)
    request.check(thinks_between_calls=beta)
    wanted = chat_request(request)
    with in_their_names(request):
        wanted.check(LIMITS)
    return wanted


def conversation(*messages: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    return translated(messages=list(messages), **fields).messages


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


def use(id: str = "toolu_1", **input: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "weather", "input": input}


def result(content: Any, id: str = "toolu_1", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **more}


def plain(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": said}, **more}


def image(kind: str, **source: Any) -> dict[str, Any]:
    return {"type": "image", "source": {"type": kind, **source}}


def test_a_line_that_changes_with_each_request_does_not_stand_in_front_of_all() -> None:
    header = "x-anthropic-billing-header: cc_version=2.1; cch=a1b2c;"
    assert conversation(HELLO, system=[text(header), text("Be brief.")])[0]["content"] == "Be brief."
    assert conversation(HELLO, system=f"{header}\nBe brief.")[0]["content"] == "Be brief."
    assert conversation(HELLO, system=f"On {header}")[0]["content"] == f"On {header}"
    assert conversation(HELLO, system=header) == [HELLO]


def test_vllms_own_fields_are_passed_on_and_the_template_gets_the_clients_word() -> None:
    request = translated(
        cache_salt="s", chat_template_kwargs={"a": 1, "thinking": False}, thinking={"type": "adaptive"}
    )
    assert request.cache_salt == "s"
    assert request.chat_template_kwargs == {"enable_thinking": True, "a": 1, "thinking": False}
    assert translated().chat_template_kwargs is None
    asked = translated(vllm_xargs={"ngram_size": 3}).vllm_xargs
    assert asked is not None
    assert (asked.ngram_size, asked.window_size) == (3, 100)
    with pytest.raises(BadRequest, match="`vllm_xargs`"):
        translated(vllm_xargs={"a": 1})


def test_what_both_protocols_have_is_passed_on() -> None:
    request = translated(stop_sequences=["a", "b"], temperature=0.5, top_p=0.9, top_k=7, stream=True)
    assert (request.max_tokens, request.stop_strings) == (2000, ("a", "b"))
    assert (request.temperature, request.top_p, request.top_k, request.stream) == (0.5, 0.9, 7, True)
    assert request.add_generation_prompt
    assert not request.continue_final_message


def test_an_empty_system_is_none() -> None:
    for nothing in ("", [], [text("")]):
        assert conversation(HELLO, system=nothing)[0]["role"] == "user"


def test_system_texts_before_the_conversation_are_one_message() -> None:
    said = conversation(
        {"role": "system", "content": "two"},
        {"role": "system", "content": [text("three", cache_control={"type": "ephemeral"})]},
        HELLO,
        system=[text("one", cache_control={"type": "ephemeral", "ttl": "1h"})],
    )
    assert said == [{"role": "system", "content": "one\ntwo\nthree"}, {"role": "user", "content": "hello"}]


REMINDED = "<system-reminder>\nPlan mode is active.\n</system-reminder>"


def test_a_later_system_message_stays_in_its_place_so_that_the_prompt_before_it_stays_cached() -> None:
    """Claude Code adds them as a conversation goes on: which agents there are, that plan mode began."""
    before = [
        user(text("Read the file note.txt")),
        {"role": "system", "content": "Available agent types for the Agent tool:\n- claude"},
        assistant(use()),
        user(result("BANANA-42", is_error=False)),
        assistant(text("The file says BANANA-42.")),
    ]
    plan = {"role": "system", "content": "Plan mode is active."}
    cached = conversation(*before, user(text("And now?")), system="Be an agent.")
    said = conversation(*before, user(text("And now?")), plan, system="Be an agent.")
    assert said[:-1] == cached[:-1]
    assert said[-1] == {"role": "user", "content": f"And now?\n{REMINDED}"}
    assert said[1]["content"].endswith("Available agent types for the Agent tool:\n- claude\n</system-reminder>")


def test_a_system_message_between_a_call_and_its_result_comes_behind_the_result() -> None:
    plan = {"role": "system", "content": "Plan mode is active."}
    said = conversation(HELLO, assistant(use()), plan, user(result("sunny")))
    assert [message["role"] for message in said] == ["user", "assistant", "tool", "user"]
    assert said[-1]["content"] == REMINDED


def test_a_system_message_at_the_end_is_answered_and_no_prefill_continued() -> None:
    said = translated(messages=[HELLO, assistant(text("yes")), {"role": "system", "content": "Plan mode is active."}])
    assert (said.messages[-1]["content"], said.continue_final_message) == (REMINDED, False)


def test_neighbours_of_one_role_are_one_message() -> None:
    said = conversation(HELLO, user(text("a"), text("b")), assistant(text("x"), text("y")), assistant(text("z")), HELLO)
    assert said == [
        {"role": "user", "content": "hello\na\nb"},
        {"role": "assistant", "content": "xy\nz"},
        {"role": "user", "content": "hello"},
    ]


def test_a_last_message_of_the_assistant_s_is_continued() -> None:
    request = translated(messages=[HELLO, {"role": "assistant", "content": "The answer is ("}])
    assert request.continue_final_message
    assert not request.add_generation_prompt
    nothing: Any
    for nothing in ("", []):
        request = translated(messages=[HELLO, {"role": "assistant", "content": nothing}])
        assert request.add_generation_prompt, "there is nothing to continue"
        assert len(request.messages) == 1


def test_calls_results_and_thoughts_are_where_chat_has_them() -> None:
    said = conversation(
        HELLO,
        assistant(
            {"type": "thinking", "thinking": "Hm.", "signature": "of another server"},
            {"type": "redacted_thinking", "data": "x"},
            text("I look."),
            use("toolu_1", place="Rome"),
            use("toolu_2"),
        ),
        user(result("sunny", "toolu_2"), text("And now?"), result([text("wet"), text("cold")], is_error=True)),
    )
    assert said[1] == {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "Hm.",
        "tool_calls": [
            {"id": "toolu_1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "Rome"}'}},
            {"id": "toolu_2", "type": "function", "function": {"name": "weather", "arguments": "{}"}},
        ],
    }
    assert said[2:] == [
        {"role": "tool", "tool_call_id": "toolu_2", "name": "weather", "content": "sunny"},
        {"role": "tool", "tool_call_id": "toolu_1", "name": "weather", "content": "Error: wet\ncold"},
        {"role": "user", "content": "And now?"},
    ]


def test_an_id_may_come_again_once_it_has_its_result() -> None:
    turn = [assistant(use()), user(result("wet"))]
    assert [message["role"] for message in conversation(HELLO, *turn, *turn)[1:]] == ["assistant", "tool"] * 2


def test_documents_of_text_are_text() -> None:
    chunks = {"type": "document", "source": {"type": "content", "content": [text("one"), text("two")]}}
    said = conversation(user(plain("Once upon", title="A tale", context="old"), text("Sum it up."), chunks))
    assert said == [{"role": "user", "content": "A tale\nold\nOnce upon\nSum it up.\none\ntwo"}]


def test_results_of_searches_are_text_wherever_they_stand() -> None:
    found = {
        "type": "search_result",
        "title": "Tides",
        "source": "https://x.test",
        "content": [text("High."), text("Low.")],
    }
    (message,) = conversation(user(found, text("When?")))
    assert message["content"] == "Tides\nhttps://x.test\nHigh.\nLow.\nWhen?"
    *_, answered = conversation(HELLO, assistant(use()), user(result([found])))
    assert answered["content"] == "Tides\nhttps://x.test\nHigh.\nLow."


def test_all_tools_are_offered_where_some_would_have_to_be_searched() -> None:
    search = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
    deferred = {"name": "f", "input_schema": {"type": "object"}, "defer_loading": True}
    reference = result([{"type": "tool_reference", "tool_name": "f"}])
    chat = translated(messages=[HELLO, assistant(use()), user(reference)], tools=[search, deferred])
    assert [tool["function"]["name"] for tool in chat.tools or ()] == ["f"]
    assert chat.messages[-1]["content"] == "The tool `f` can be called."
    assert translated(messages=[HELLO], tools=[search]).tools is None


def test_tools_and_their_choice() -> None:
    request = translated(tools=[WEATHER | {"strict": True, "cache_control": {"type": "ephemeral"}, "type": "custom"}])
    assert request.tools == [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": "of a place",
                "parameters": {"type": "object", "properties": {}},
                "strict": True,
            },
        }
    ]
    assert (request.tool_choice, request.parallel_tool_calls) == ("auto", None)
    for choice, wanted in [
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "weather"}, {"type": "function", "function": {"name": "weather"}}),
    ]:
        assert translated(tools=[WEATHER], tool_choice=choice).tool_choice == wanted
    one = translated(tools=[WEATHER], tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert one.parallel_tool_calls is False
    assert translated(tool_choice={"type": "auto"}).tool_choice is None, "there are no tools"


def test_how_much_to_think() -> None:
    enabled = translated(thinking={"type": "enabled", "budget_tokens": 1024})
    assert enabled.thinking_token_budget == 1024
    assert enabled.chat_template_kwargs == {"enable_thinking": True}
    assert translated(thinking={"type": "adaptive"}).thinking_token_budget is None
    for kind in ("disabled", "between_tools"):
        assert translated(thinking={"type": kind}).chat_template_kwargs == {"enable_thinking": False}
    assert translated().chat_template_kwargs is None, "the model decides"
    assert translated(beta=True, thinking={"type": "enabled", "budget_tokens": 9999}).thinking_token_budget == 9999


@pytest.mark.parametrize("effort", ["low", "medium", "high", "xhigh", "max"])
def test_every_effort_is_one_of_chat_s(effort: str) -> None:
    assert translated(output_config={"effort": effort}).reasoning_effort == effort


def test_what_is_without_effect_is_taken() -> None:
    translated(
        metadata={"user_id": "me"},
        service_tier="auto",
        cache_control={"type": "ephemeral"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        betas=["a"],
        mcp_servers=[],
    )


def test_pictures_stand_between_texts_where_they_stood() -> None:
    picture = image("base64", media_type="image/png", data="AAAA")
    (message,) = conversation(
        user(text("a"), text("b"), picture, text("c")), user(image("url", url="https://x.test/y"))
    )
    assert message["content"] == [
        {"type": "text", "text": "a\nb"},
        {
            "type": "image_url",
            "image_url": {"url": "data:image/png;base64,AAAA"},
            "_field": "messages[0].content[2]",
        },
        {"type": "text", "text": "c"},
        {"type": "image_url", "image_url": {"url": "https://x.test/y"}, "_field": "messages[1].content[0]"},
    ]


def test_the_result_of_a_tool_may_hold_pictures() -> None:
    shown = user(result([text("seen"), image("file", file_id="file-1")], is_error=True))
    *_, message = conversation(HELLO, assistant(use()), shown)
    assert message["content"] == [
        {"type": "text", "text": "Error: seen"},
        {"type": "image_url", "image_url": {"file_id": "file-1"}, "_field": "messages[2].content[0].content[1]"},
    ]


@pytest.mark.parametrize(
    ("source", "file"),
    [
        (
            {"type": "base64", "media_type": "application/pdf", "data": "JVBE"},
            {"file_data": "data:application/pdf;base64,JVBE"},
        ),
        ({"type": "url", "url": "https://x.test/a.pdf"}, {"file_url": "https://x.test/a.pdf"}),
        ({"type": "file", "file_id": "file-1"}, {"file_id": "file-1"}),
    ],
)
def test_a_document_that_is_no_text_is_a_file_under_its_title(source: dict[str, Any], file: dict[str, Any]) -> None:
    (message,) = conversation(user({"type": "document", "title": "T", "source": source}))
    assert message["content"] == [
        {"type": "text", "text": "T"},
        {"type": "file", "file": file, "_field": "messages[0].content[0]"},
    ]


def test_a_document_of_blocks_may_hold_pictures() -> None:
    blocks = [text("one"), image("url", url="https://x.test/y")]
    (message,) = conversation(user({"type": "document", "source": {"type": "content", "content": blocks}}))
    assert [part["type"] for part in message["content"]] == ["text", "image_url"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [user()]}, "messages[0].content"),
        ({"messages": [user(text("a"), {"type": "text"})]}, "messages[0].content[1].text"),
        ({"messages": [user({"type": "telepathy"})]}, "messages[0].content[0].type"),
        ({"messages": [user({"type": "image"})]}, "messages[0].content[0].source"),
        ({"messages": [user({"type": "image", "source": {}})]}, "messages[0].content[0].source.type"),
        ({"messages": [user(image("url"))]}, "messages[0].content[0].source.url"),
        ({"messages": [user(image("base64", media_type="image/png"))]}, "messages[0].content[0].source.data"),
        (
            {"messages": [user(image("base64", media_type="image/bmp", data="AA"))]},
            "messages[0].content[0].source.media_type",
        ),
        ({"messages": [user(image("text", data="a"))]}, "messages[0].content[0].source.type"),
        ({"messages": [user({"type": "search_result"})]}, "messages[0].content[0].source"),
        (
            {
                "messages": [
                    user(
                        {
                            "type": "search_result",
                            "source": "a",
                            "title": "b",
                            "content": [],
                            "citations": {"enabled": True},
                        }
                    )
                ]
            },
            "messages[0].content[0].citations",
        ),
        (
            {"messages": [user({"type": "document", "source": {"type": "base64"}})]},
            "messages[0].content[0].source.media_type",
        ),
        ({"messages": [user(plain("a", citations={"enabled": True}))]}, "messages[0].content[0].citations"),
        ({"messages": [HELLO, assistant({"type": "image"})]}, "messages[1].content[0]"),
        ({"messages": [user(use())]}, "messages[0].content[0].type"),
        ({"messages": [HELLO, assistant(result("x"))]}, "messages[1].content[0].type"),
        ({"messages": [user(result("x"))]}, "messages[0].content[0].tool_use_id"),
        ({"messages": [HELLO, assistant(use())]}, "messages[1]"),
        ({"messages": [HELLO, assistant(use(), use())]}, "messages[1].content[1].id"),
        (
            {"messages": [HELLO, assistant(use()), user(result([{"type": "image"}]))]},
            "messages[2].content[0].content[0].source",
        ),
        ({"messages": [{"role": "system", "content": [{"type": "image"}]}, HELLO]}, "messages[0].content[0].type"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"stop_sequences": ["a"] * 17}, "stop_sequences"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
        ({"tools": [WEATHER | {"name": "a b"}]}, "tools[0].name"),
        ({"tools": [WEATHER | {"input_schema": {"type": "string"}}]}, "tools[0].input_schema.type"),
        ({"tools": [WEATHER | {"allowed_callers": ["code_execution_20250825"]}]}, "tools[0].allowed_callers"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1023}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking.budget_tokens"),
        ({"output_config": {"effort": "none"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"container": "c"}, "container"),
        ({"messages": [HELLO, assistant(use(x=[[[[[[1]]]]]])), HELLO]}, "messages"),
        ({"thread": {"type": "create"}}, "thread"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
    ],
)
def test_what_cannot_be_served_is_refused_by_its_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        translated(**fields)
    assert refusal.value.param == param
    assert f"`{param.split('[')[0].split('.')[0]}" in refusal.value.message
    assert param in refusal.value.message


def test_a_system_message_may_be_for_one_turn() -> None:
    once = {"role": "system", "content": "Now.", "clear_at": "next_user_message"}
    always = {"role": "system", "content": "Ever.", "clear_at": "never"}
    answered = assistant(text("ok"))
    assert "Now." in json.dumps(conversation(HELLO, once))
    assert "Now." in json.dumps(conversation(HELLO, once, answered))
    later = json.dumps(conversation(HELLO, once, always, answered, HELLO))
    assert "Ever." in later
    assert "Now." not in later


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "mcp_toolset", "mcp_server_name": "x"}]}, "tools[0].type"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        (
            {"messages": [HELLO, {"role": "system", "content": "x", "output_config": {"effort": "low"}}]},
            "messages[1].output_config",
        ),
        (
            {
                "messages": [
                    user({**image("url", url="https://x.test"), "transformations": {"oversized_image": "error"}})
                ]
            },
            "messages[0].content[0].transformations.oversized_image",
        ),
    ],
)
def test_what_would_change_an_answer_and_is_not_served_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        translated(**fields)
    assert refused.value.param == param
