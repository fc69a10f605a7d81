"""DeepSeek-V3.2's conversations, as its makers' code writes them."""

from typing import Any

import pytest

from stentor.server.text.errors import TemplateError
from stentor.server.text.renderers.deepseek_v32 import write
from stentor.server.text.renderers.interface import RenderRequest

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "Of a city", "parameters": {"type": "object", "properties": {}}},
}
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo", "days": [1]}'}}
ASKED: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Oslo?"}]
CALLED: list[dict[str, Any]] = [
    *ASKED,
    {"role": "assistant", "content": None, "reasoning": "look it up", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "cold"},
]


def text(messages: list[dict[str, Any]], **fields: Any) -> str:
    return write(RenderRequest(messages=messages, **fields))


def test_a_question_ends_where_the_answer_begins() -> None:
    assert text(ASKED) == "<｜begin▁of▁sentence｜>Be brief.<｜User｜>Oslo?<｜Assistant｜></think>"
    assert text(ASKED, template_kwargs={"thinking": True}).endswith("<｜Assistant｜><think>")
    assert text(ASKED, template_kwargs={"enable_thinking": True}).endswith("<｜Assistant｜><think>")


def test_calls_and_their_results_are_written_in_the_models_markup() -> None:
    assert text(CALLED) == (
        "<｜begin▁of▁sentence｜>Be brief.<｜User｜>Oslo?<｜Assistant｜></think>"
        "\n\n<｜DSML｜function_calls>\n"
        '<｜DSML｜invoke name="weather">\n'
        '<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">[1]</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n"
        "</｜DSML｜function_calls><｜end▁of▁sentence｜>"
        "\n\n<function_results>\n<result>cold</result>\n</function_results>\n\n</think>"
    )


def test_what_was_thought_is_kept_until_the_next_question() -> None:
    thinking = text(CALLED, template_kwargs={"thinking": True})
    assert "<｜Assistant｜><think>look it up</think>\n\n<｜DSML｜function_calls>" in thinking
    assert thinking.endswith("</function_results>\n\n<think>")
    later = [*CALLED, {"role": "assistant", "content": "Cold."}, {"role": "user", "content": "Thanks"}]
    assert "look it up" not in text(later, template_kwargs={"thinking": True})


def test_tools_are_explained_first_in_the_models_words() -> None:
    reported = text(ASKED, tools=[WEATHER])
    assert reported.startswith("<｜begin▁of▁sentence｜>\n\n## Tools\nYou have access to a set of tools")
    assert '<functions>\n{"name": "weather", "description": "Of a city", "parameters": ' in reported
    assert reported.index("</functions>") < reported.index("Be brief.")


def test_an_answer_can_be_continued() -> None:
    begun = [*ASKED, {"role": "assistant", "content": "It is"}]
    assert text(begun, add_generation_prompt=False, continue_final_message=True).endswith("</think>It is")
    assert text(begun, add_generation_prompt=False).endswith("It is<｜end▁of▁sentence｜>")


@pytest.mark.parametrize(
    ("messages", "fields", "said"),
    [
        ([], {}, "There are no messages"),
        ([{"role": "tool", "content": "x"}], {}, "no call before it waits"),
        ([*CALLED, {"role": "tool", "content": "more"}], {}, r"messages\[4\] is a tool's answer"),
        (CALLED[:3], {"continue_final_message": True}, "ends with calls"),
        ([{"role": "wizard", "content": "x"}], {}, "'wizard'"),
        (ASKED, {"chat_template": "x"}, "takes no chat_template"),
        (ASKED, {"documents": [{"text": "x"}]}, "takes no documents"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], {}, "takes text only"),
        (
            [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}],
            {},
            "not the JSON of an object",
        ),
    ],
)
def test_what_cannot_be_written_is_told(messages: list[dict[str, Any]], fields: dict[str, Any], said: str) -> None:
    with pytest.raises(TemplateError, match=said):
        text(messages, **fields)
