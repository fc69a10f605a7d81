"""Tools told in plain messages, for templates that know nothing of them."""

import json
from typing import Any

from stentor.server.generation.prompt import with_functions_as_tools
from stentor.server.generation.tool_prompt import example_arguments, inject_tool_prompt, mentions_tools
from stentor.tests.server.grammar.schemas import SMALL, record

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
ASKED: dict[str, Any] = {"role": "user", "content": "Rain?"}
CALLED: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Köln"}'}}],
}
ANSWERED: dict[str, Any] = {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "wet"}]}


def test_tools_stand_in_a_system_message_of_their_own_or_after_the_clients() -> None:
    own, asked = inject_tool_prompt([ASKED], [TOOL])
    assert own["role"] == "system"
    described, example = (line for line in own["content"].splitlines() if '"weather"' in line)
    assert json.loads(described) == TOOL["function"]
    assert json.loads(example) == {"name": "weather", "arguments": {}}
    assert asked == ASKED
    system, _ = inject_tool_prompt([{"role": "system", "content": "Be brief."}, ASKED], [TOOL])
    assert system["content"] == f"Be brief.\n\n{own['content']}"


def test_the_example_of_a_call_has_the_names_and_types_of_the_tool() -> None:
    parameters = {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "unit": {"enum": ["celsius", "fahrenheit"]},
            "days": {"type": ["integer", "null"]},
            "share": {"type": "number"},
            "rain": {"type": "boolean"},
            "place": {"$ref": "#/$defs/Place"},
            "hours": {"type": "array", "items": {"type": "integer"}},
            "left_out": {"type": "string"},
        },
        "required": ["city", "unit", "days", "share", "rain", "place", "hours", "undeclared"],
        "$defs": {
            "Place": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "inner": {"$ref": "#/$defs/Place"}},
                "required": ["name", "inner"],
            }
        },
    }
    example = example_arguments({"name": "weather", "parameters": parameters})
    place = example.pop("place")
    assert example == {
        "city": "<city>", "unit": "celsius", "days": 0, "share": 0.5, "rain": True, "hours": [0],
        "undeclared": "<undeclared>",
    }  # fmt: skip
    assert place == {"name": "<name>", "inner": {"name": "<name>", "inner": {"name": "<name>", "inner": {}}}}
    assert example_arguments({"name": "f", "parameters": {"properties": {"a": {"type": "null"}}}}) == {"a": None}
    for nothing in (None, {}, {"type": "object", "properties": {}}, {"properties": [], "required": 3}):
        assert example_arguments({"name": "f", "parameters": nothing}) == {}


def test_every_tool_has_an_example_that_its_schema_allows() -> None:
    tools = [
        {"type": "function", "function": {"name": f"f{n}", "parameters": record({f"p{n}": SMALL})}} for n in (1, 2)
    ]
    own, _ = inject_tool_prompt([ASKED], tools)
    calls = own["content"].split("<tool_call>\n")[1:]
    assert [json.loads(call.partition("\n")[0]) for call in calls] == [
        {"name": "f1", "arguments": {"p1": 0}}, {"name": "f2", "arguments": {"p2": 0}},
    ]  # fmt: skip


def test_earlier_calls_and_results_become_text() -> None:
    messages = inject_tool_prompt([ASKED, CALLED, ANSWERED], [TOOL])[1:]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    call = messages[1]["content"].removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
    assert json.loads(call) == {"name": "weather", "arguments": {"city": "Köln"}}
    assert messages[2]["content"] == "<tool_response>\nwet\n</tool_response>"
    assert inject_tool_prompt([ASKED, CALLED, ANSWERED], []) == messages


def test_a_conversation_without_tools_is_told_apart() -> None:
    assert not mentions_tools([ASKED, {"role": "assistant", "content": "Yes."}])
    assert mentions_tools([CALLED])
    assert mentions_tools([ANSWERED])


def test_older_and_other_forms_of_calls_become_tools() -> None:
    old = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    result = {"role": "function", "name": "f", "content": "5"}
    custom = {"role": "assistant", "tool_calls": [{"id": "2", "type": "custom", "custom": {"name": "c", "input": "a"}}]}
    ready = with_functions_as_tools([ASKED, old, result, custom])
    assert ready[0] is ASKED
    assert ready[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    assert (ready[2]["role"], ready[2]["tool_call_id"]) == ("tool", ready[1]["tool_calls"][0]["id"])
    assert ready[3]["tool_calls"][0]["function"] == {"name": "c", "arguments": {"input": "a"}}


def test_pictures_in_a_system_message_stay_in_it() -> None:
    system = {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    first, _ = inject_tool_prompt([system, {"role": "user", "content": "b"}], [tool])
    assert first["content"][:2] == system["content"]
    assert "<tools>" in first["content"][2]["text"]
