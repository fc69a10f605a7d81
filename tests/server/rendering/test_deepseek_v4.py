"""DeepSeek-V4's conversations, as its makers' code writes them."""

from typing import Any

import pytest

from stentor.server.text.errors import TemplateError
from stentor.server.text.renderers.deepseek_v4 import write
from stentor.server.text.renderers.interface import RenderRequest

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "Of a city", "parameters": {"type": "object", "properties": {}}},
}
ASKED: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Oslo?"}]


def call(id: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "weather", "arguments": arguments}}


CALLED: list[dict[str, Any]] = [
    *ASKED,
    {
        "role": "assistant",
        "content": None,
        "reasoning": "look it up",
        "tool_calls": [call("1", '{"city": "Oslo", "days": [1]}'), call("2", "{}")],
    },
    {"role": "tool", "tool_call_id": "2", "content": "warm"},
    {"role": "tool", "tool_call_id": "1", "content": "cold"},
]
INVOKED = (
    "\n\n<｜DSML｜tool_calls>\n"
    '<｜DSML｜invoke name="weather">\n'
    '<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">[1]</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n"
    '<｜DSML｜invoke name="weather">\n\n</｜DSML｜invoke>\n'
    "</｜DSML｜tool_calls><｜end▁of▁sentence｜>"
)
RESULTS = "<｜User｜><tool_result>cold</tool_result>\n\n<tool_result>warm</tool_result>"


def text(messages: list[dict[str, Any]], **fields: Any) -> str:
    return write(RenderRequest(messages=messages, **fields))


def test_the_model_thinks_unless_it_is_told_not_to() -> None:
    assert text(ASKED) == "<｜begin▁of▁sentence｜>Be brief.<｜User｜>Oslo?<｜Assistant｜><think>"
    assert text(ASKED, template_kwargs={"thinking": False}).endswith("<｜User｜>Oslo?<｜Assistant｜></think>")
    assert text(ASKED, template_kwargs={"enable_thinking": False}).endswith("<｜Assistant｜></think>")


@pytest.mark.parametrize(
    ("effort", "begin"),
    [
        ("low", "Be brief."),
        ("medium", "Be brief."),
        ("high", "Reasoning Effort: Abs"),
        ("max", "Reasoning Effort: Bey"),
    ],
)
def test_an_effort_is_asked_for_in_the_models_words_where_it_thinks(effort: str, begin: str) -> None:
    asked = {"reasoning_effort": effort}
    assert text(ASKED, template_kwargs=asked).startswith("<｜begin▁of▁sentence｜>" + begin)
    silent = text(ASKED, template_kwargs={**asked, "enable_thinking": False})
    assert silent.startswith("<｜begin▁of▁sentence｜>Be brief.")


def test_results_of_calls_are_a_users_turn_in_the_order_of_the_calls() -> None:
    begin = "<｜begin▁of▁sentence｜>Be brief.<｜User｜>Oslo?<｜Assistant｜></think>"
    silent = text(CALLED, template_kwargs={"thinking": False})
    assert silent == begin + INVOKED + RESULTS + "<｜Assistant｜></think>"
    asked_on = text([*CALLED, {"role": "user", "content": "And?"}], template_kwargs={"thinking": False})
    assert asked_on == begin + INVOKED + RESULTS + "\n\nAnd?<｜Assistant｜></think>"


def test_what_was_thought_is_kept_where_there_are_tools_and_else_until_the_next_question() -> None:
    kept = text(CALLED, tools=[WEATHER])
    assert kept.endswith(f"<｜Assistant｜><think>look it up</think>{INVOKED}{RESULTS}<｜Assistant｜><think>")
    dropped = text(CALLED)
    assert dropped.endswith(f"<｜Assistant｜></think>{INVOKED}{RESULTS}<｜Assistant｜><think>")


@pytest.mark.parametrize("instructed", [True, False])
def test_tools_are_explained_behind_the_instructions(instructed: bool) -> None:
    written = text(ASKED if instructed else ASKED[1:], tools=[WEATHER])
    begin = "<｜begin▁of▁sentence｜>" + "Be brief." * instructed
    assert written.startswith(begin + "\n\n## Tools\n\nYou have access to a set of tools")
    assert '### Available Tool Schemas\n\n{"name": "weather", "description": "Of a city", "parameters": ' in written
    assert written.endswith("schemas to invoke tool calls.\n<｜User｜>Oslo?<｜Assistant｜><think>")


def test_instructions_of_a_developer_are_the_systems() -> None:
    assert text([{"role": "developer", "content": "Be brief."}, ASKED[1]]) == text(ASKED)


def test_an_answer_that_was_sent_in_several_messages_is_one() -> None:
    parts: list[dict[str, Any]] = [
        {"role": "assistant", "content": "It is", "reasoning": "one"},
        {"role": "assistant", "content": "", "reasoning": "two", "tool_calls": [call("1", "{}")]},
        {"role": "tool", "tool_call_id": "1", "content": "cold"},
    ]
    assert "<think>one\n\ntwo</think>It is\n\n<｜DSML｜tool_calls>" in text([*ASKED, *parts], tools=[WEATHER])


def test_an_answer_can_be_continued() -> None:
    begun = [*ASKED, {"role": "assistant", "content": "It is"}]
    assert text(begun, add_generation_prompt=False, continue_final_message=True).endswith("</think>It is")
    assert text(begun, add_generation_prompt=False).endswith("It is<｜end▁of▁sentence｜>")


@pytest.mark.parametrize(
    ("messages", "fields", "said"),
    [
        ([], {}, "There are no messages"),
        (CALLED[:3], {"continue_final_message": True}, "ends with calls"),
        ([{"role": "wizard", "content": "x"}], {}, r"messages\[0\].role is 'wizard'"),
        (ASKED, {"chat_template": "x"}, "takes no chat_template"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], {}, "takes text only"),
        ([{"role": "assistant", "content": "", "tool_calls": [call("1", "[1]")]}], {}, "not the JSON of an object"),
    ],
)
def test_what_cannot_be_written_is_told(messages: list[dict[str, Any]], fields: dict[str, Any], said: str) -> None:
    with pytest.raises(TemplateError, match=said):
        text(messages, **fields)
