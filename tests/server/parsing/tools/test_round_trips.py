"""A call that a chat template renders is parsed back as the same call, for every family."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

import stentor
from stentor.server.parsing.output import FORMATS, TOOL_FORMATS, detected
from stentor.server.text.templates.chat_template import ChatTemplate
from stentor.tests.server.parsing.tools.reading import cut, read
from stentor.tests.server.parsing.tools.templates import BARE, CALLS, template

pytestmark = pytest.mark.sampled

QUESTION: dict[str, Any] = {"role": "user", "content": "Q"}
ARGUMENTS: dict[str, Any] = {
    "city": 'Zü"rich\n{日本} \\ </x>',
    "days": -3,
    "place": {"a": [1, "b}"], "ü": {"c": None}},
    "hours": [1, 2.5, []],
    "rain": True,
}


def call(name: str, arguments: dict[str, Any], number: int) -> dict[str, Any]:
    return {"id": f"call{number:05}", "type": "function", "function": {"name": name, "arguments": arguments}}


AS_TEXT: dict[str, Any] = {"place": {"a": ["1", "b}"], "ü": ""}, "hours": ["1", "2.5", ""]}
"""What is left of these where a format tells no type and leaves out nulls: their schemas do not tell it either."""


CASES: list[list[tuple[str, dict[str, Any]]]] = [
    [("get_weather", ARGUMENTS)],
    [("now", {})],
    [("get_weather", {"city": ""}), ("now", {}), ("get_weather", {"city": "\n x \n"})],
]


@cache
def compiled(source: str) -> ChatTemplate:
    return ChatTemplate(source, {})


def rendered(source: str, content: str, calls: list[tuple[str, dict[str, Any]]]) -> str:
    """What the model would have written."""
    chat_template = compiled(source)
    message = {
        "role": "assistant",
        "content": content,
        "tool_calls": [call(*each, number) for number, each in enumerate(calls)],
    }
    prompt = chat_template.render([QUESTION], add_generation_prompt=True)
    whole = chat_template.render([QUESTION, message])
    assert whole.startswith(prompt)
    return whole[len(prompt) :]


@pytest.mark.parametrize("calls", CASES, ids=["one", "no-arguments", "several"])
@pytest.mark.parametrize(
    ("name", "content", "body"),
    [(name, "Füße: {1}", body) for name, body in CALLS.items()] + [(name, "", body) for name, body in BARE.items()],
)
def test_a_rendered_call_is_parsed_back(
    name: str, content: str, body: str, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    text = rendered(template(body), content, calls)
    told = AS_TEXT if name == "minimax_m3" else {}
    wanted = [(called, {key: told.get(key, value) for key, value in given.items()}) for called, given in calls]
    for size in (1, 5, len(text)):
        reading = read(TOOL_FORMATS[name], *cut(text, size))
        assert reading.named == wanted
        assert all(each.whole for each in reading.calls)
        assert reading.content == content


UNTOLD = {"k2_horizon_json", "plain", "granite", "gigachat3", "phi4_mini_json", "xlam", "minimax"}
"""Formats that only what else their templates say tells from others."""


def test_every_format_has_a_template() -> None:
    assert {format.name for format in FORMATS} == CALLS.keys() | BARE.keys()


@pytest.mark.parametrize("name", sorted(CALLS.keys() - UNTOLD))
def test_a_template_tells_its_format(name: str) -> None:
    assert detected(template(CALLS[name])).name == name


def test_the_reference_names_every_format() -> None:
    page = (Path(stentor.__file__).parent / "docs" / "reference" / "parsers.md").read_text()
    assert [name for name in TOOL_FORMATS if f"`{name}`" not in page] == []


def test_a_template_without_calls_is_plain() -> None:
    assert (
        detected("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}").name
        == "plain"
    )


@pytest.mark.parametrize(
    ("alias", "name"),
    [("qwen3_xml", "qwen3_coder"), ("granite4", "hermes"), ("hunyuan_a13b", "jamba"), ("llama4_json", "llama3_json")],
)
def test_a_format_has_the_names_that_others_give_it(alias: str, name: str) -> None:
    assert TOOL_FORMATS[alias] is TOOL_FORMATS[name]
