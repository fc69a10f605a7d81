"""Templates that cannot render every conversation are given one that they can."""

from typing import Any

import pytest

from stentor.server.text.templates.chat_template import ChatTemplate
from stentor.tests.support.harmony import TEMPLATE

ONE_CALL = (
    "{% for m in messages %}{% if 'tool_calls' in m %}"
    "{% if m.tool_calls | length != 1 %}{{ raise_exception('single tool-calls') }}{% endif %}"
    "{{ m.content }}{{ m['tool_calls'][0].function.name }};{% else %}{{ m.role }}:{{ m.content }};{% endif %}"
    "{% endfor %}"
)
"""What Llama 3.1's does."""


def call(name: str, id: str, **arguments: Any) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(id: str | None, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


USER = {"role": "user", "content": "Q"}
TWO = {"role": "assistant", "content": "Both.", "tool_calls": [call("f", "a"), call("g", "b", x=1)]}


@pytest.mark.parametrize(
    ("results", "rendered"),
    [
        ([result("a", "1"), result("b", "2")], "Both.f;tool:1;g;tool:2;"),
        ([result("b", "2"), result("a", "1")], "Both.f;tool:1;g;tool:2;"),
        ([result("a", "1")], "Both.f;tool:1;g;"),
        ([], "Both.f;g;"),
        ([result(None, "1"), result("x", "2")], "Both.f;g;tool:1;tool:2;"),
    ],
)
def test_a_template_of_one_call_is_given_each_call_with_its_result(results: Any, rendered: str) -> None:
    assert ChatTemplate(ONE_CALL, {}).render([USER, TWO, *results, USER]) == f"user:Q;{rendered}user:Q;"


def test_a_template_that_goes_through_the_calls_is_given_them_together() -> None:
    for loop in ("m.tool_calls", "m['tool_calls']", "calls"):
        source = (
            "{% for m in messages %}{% set calls = m.tool_calls %}{{ m.role[0] }}"
            "{% if m.tool_calls and m.tool_calls[0] %}"
            "{% for c in LOOP %}{{ c.function.name }}{% endfor %}{% endif %}{% endfor %}"
        ).replace("LOOP", loop if loop != "calls" else "m.tool_calls[1:]")
        rendered = ChatTemplate(source, {}).render([USER, TWO, result("a", "1"), result("b", "2")])
        assert rendered == ("uafgtt" if loop != "calls" else "uagtt")


def harmony(messages: list[dict[str, Any]], **fields: Any) -> str:
    text = ChatTemplate(TEMPLATE, {}).render([*messages], add_generation_prompt=True, **fields)
    system, _, rest = text.partition("<|end|>")
    assert system.startswith("<|start|>system<|message|>You are ChatGPT.")
    assert rest.endswith("<|start|>assistant")
    return rest.removesuffix("<|start|>assistant")


def test_what_gpt_oss_said_before_a_call_is_told_to_it_with_its_reasoning() -> None:
    said = {**TWO, "tool_calls": TWO["tool_calls"][:1], "reasoning_content": "Hm."}
    assert harmony([USER, said, result("a", "1")]) == (
        "<|start|>user<|message|>Q<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>Hm.\nBoth.<|end|>"
        "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>"
        '<|start|>functions.f to=assistant<|channel|>commentary<|message|>"1"<|end|>'
    )


def test_gpt_oss_is_told_the_result_of_each_of_several_calls() -> None:
    rendered = harmony([USER, TWO, result("a", "1"), result("b", "2")])
    assert rendered.endswith(
        '<|start|>functions.f to=assistant<|channel|>commentary<|message|>"1"<|end|>'
        '<|start|>assistant to=functions.g<|channel|>commentary json<|message|>{"x": 1}<|call|>'
        '<|start|>functions.g to=assistant<|channel|>commentary<|message|>"2"<|end|>'
    )


def test_all_instructions_reach_gpt_oss() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "Rhyme."}]},
        USER,
        {"role": "developer", "content": "Now."},
    ]
    assert harmony(messages).startswith(
        "<|start|>developer<|message|># Instructions\n\nBe brief.\n\nRhyme.\n\nNow.<|end|>"
    )


def test_gpt_oss_may_be_given_a_tool_without_a_description() -> None:
    tool: dict[str, Any] = {
        "type": "function",
        "function": {"name": "now", "parameters": {"type": "object", "properties": {}}},
    }
    reported = {"type": "function", "function": {"name": "f", "description": "Does it."}}
    assert "{\n// \ntype now = (_: any) => any;\n// Does it.\ntype f =" in harmony([USER], tools=[tool, reported])
    null = {"type": "function", "function": {**tool["function"], "description": None}}
    assert harmony([USER], tools=[null]) == harmony([USER], tools=[tool])
