"""DeepSeek-V4.1's conversations, as its makers' code writes them."""

from typing import Any

import pytest

from stentor.server.text.errors import TemplateError
from stentor.server.text.renderers.deepseek_v41 import write
from stentor.server.text.renderers.interface import RenderRequest
from stentor.server.text.templates.placeholders import MediaText
from stentor.tests.server.rendering.test_deepseek_v4 import ASKED, CALLED, INVOKED, RESULTS, WEATHER

PICTURE = "<｜deepseek_image｜>"
BEGIN = "<｜begin▁of▁sentence｜>"
HIGH = "<｜System｜>Reasoning Effort: 75 (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
SPACED = INVOKED.replace("｜DSML｜tool_calls", "｜DSML｜ calls").replace("｜DSML｜", "｜DSML｜ ").replace("  ", " ")
SILENT = {"thinking": False}


def text(messages: list[dict[str, Any]], **fields: Any) -> str:
    return write(RenderRequest(messages=messages, **fields))


def test_the_model_thinks_unless_it_is_told_not_to() -> None:
    assert text(ASKED) == f"{BEGIN}{HIGH}Be brief.<｜User｜>Oslo?<｜Assistant｜><think>"
    assert text(ASKED[1:]) == f"{BEGIN}{HIGH}<｜User｜>Oslo?<｜Assistant｜><think>"
    silent = f"{BEGIN}<｜System｜>Be brief.<｜User｜>Oslo?<｜Assistant｜></think>"
    for said in (SILENT, {"enable_thinking": False}, {"reasoning_effort": "none"}):
        assert text(ASKED, template_kwargs=said) == silent


@pytest.mark.parametrize(
    ("effort", "budget"),
    [(None, 75), ("low", 50), ("high", 75), ("xhigh", 75), ("max", 100), (1, 1), (42, 42), (100, 100)],
)
def test_an_effort_is_a_number_in_the_first_line(effort: str | int | None, budget: int) -> None:
    said = {} if effort is None else {"reasoning_effort": effort}
    assert text(ASKED, template_kwargs=said).startswith(f"{BEGIN}<｜System｜>Reasoning Effort: {budget} (range")


@pytest.mark.parametrize("effort", ["medium", "minimal", 0, 101, True, 1.5, -1])
def test_other_efforts_are_refused(effort: object) -> None:
    with pytest.raises(
        TemplateError, match=r"reasoning_effort is .* expected low, high, xhigh, max, none, or a number"
    ):
        text(ASKED, template_kwargs={"reasoning_effort": effort})


def test_results_of_calls_are_a_user_s_turn_in_the_order_of_the_calls() -> None:
    begin = f"{BEGIN}<｜System｜>Be brief.<｜User｜>Oslo?<｜Assistant｜></think>"
    assert text(CALLED, template_kwargs=SILENT) == begin + SPACED + RESULTS + "<｜Assistant｜></think>"
    asked_on = text([*CALLED, {"role": "user", "content": "And?"}], template_kwargs=SILENT)
    assert asked_on == begin + SPACED + RESULTS + "\n\nAnd?<｜Assistant｜></think>"


def test_what_was_thought_is_kept_until_the_next_question_which_results_are_not() -> None:
    thought = f"<｜Assistant｜><think>look it up</think>{SPACED}{RESULTS}"
    assert text(CALLED).endswith(f"Oslo?{thought}<｜Assistant｜><think>")
    answered = [*CALLED, {"role": "assistant", "content": "Cold."}, {"role": "user", "content": "And?"}]
    assert f"Oslo?<｜Assistant｜></think>{SPACED}" in text(answered)
    assert thought in text(answered, tools=[WEATHER])


def test_the_system_may_speak_between_turns() -> None:
    said = [ASKED[1], {"role": "system", "content": "Be brief."}]
    begin = f"{BEGIN}<｜User｜>Oslo?<｜System｜>Be brief."
    assert text(said, template_kwargs=SILENT) == f"{begin}<｜Assistant｜></think>"


@pytest.mark.parametrize("instructed", [True, False])
def test_tools_are_explained_behind_the_instructions(instructed: bool) -> None:
    written = text(ASKED if instructed else ASKED[1:], tools=[WEATHER])
    assert written.startswith(
        f"{BEGIN}{HIGH}{'Be brief.' * instructed}\n\n## Tools\n\nYou have access to a set of tools"
    )
    assert '<｜DSML｜ calls>\n<｜DSML｜ invoke name="$TOOL_NAME">\n<｜DSML｜ parameter name=' in written
    assert '### Available Tool Schemas\n\n{"name": "weather", "description": "Of a city", "parameters": ' in written
    assert written.endswith("schemas to invoke tool calls.\n<｜User｜>Oslo?<｜Assistant｜><think>")


def test_an_answer_can_be_continued() -> None:
    begun = [*ASKED, {"role": "assistant", "content": "It is"}]
    assert text(begun, add_generation_prompt=False, continue_final_message=True).endswith("</think>It is")
    assert text(begun, add_generation_prompt=False).endswith("It is<｜end▁of▁sentence｜>")


def pictures(count: int) -> MediaText:
    return MediaText({"image": PICTURE}, {"image": [f"<{number}>" for number in range(count)]})


def test_parts_of_a_message_have_an_empty_line_between_them_and_pictures_stand_where_they_are_given() -> None:
    content = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}, {"type": "image"}]
    written = text([{"role": "user", "content": content}], template_kwargs=SILENT, media=pictures(2))
    assert written == f"{BEGIN}<｜User｜>a\n\n<0>\n\nb\n\n<1><｜Assistant｜></think>"


def test_results_of_tools_may_be_pictures_in_the_order_of_the_calls() -> None:
    ordered = [*CALLED[:3], CALLED[4], CALLED[3]]
    shown = [
        {**message, "content": [{"type": "image"}]} if message["role"] == "tool" else message for message in ordered
    ]
    written = text(shown, template_kwargs=SILENT, media=pictures(2))
    assert "<tool_result><0></tool_result>\n\n<tool_result><1></tool_result>" in written
    with pytest.raises(TemplateError, match="with images stand in another order than their calls"):
        text([*shown[:3], shown[4], shown[3]], media=pictures(2))


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([{"role": "wizard", "content": "x"}], r"messages\[0\].role is 'wizard'"),
        ([{"role": "user", "content": "<｜deepseek_image｜>"}], "which stands for a picture"),
        ([{"role": "user", "content": [{"type": "audio"}]}], "a part that is neither text nor an image"),
    ],
)
def test_what_cannot_be_written_is_told(messages: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(TemplateError, match=said):
        text(messages)
