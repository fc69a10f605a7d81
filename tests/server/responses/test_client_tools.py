"""Tools that a client runs and OpenAI has described, and namespaces: offered as functions, shown as they were sent."""

import json
from typing import Any

import msgspec
import pytest
from openai.types.responses import Response
from openai.types.responses.response_item_list import ResponseItemList

from stentor.protocols.common.errors import BadRequest
from stentor.protocols.common.limits import Limits
from stentor.protocols.openai.responses.client_tools import call_item, function_of, output_text
from stentor.protocols.openai.responses.items import read_items
from stentor.protocols.openai.responses.tools import (
    chat_choice,
    chat_tools,
    check_choice,
    check_tools,
    loaded_tools,
    shown_tools,
)
from stentor.server.api.responses.conversion import droppable, messages_of
from stentor.server.api.responses.ids import random_id
from stentor.server.config.config import McpConfig
from stentor.tests.server.harness import in_memory
from stentor.tests.server.responses.shapes import EXTENSIONS, RESPONSES
from stentor.tests.server.tools.scripted import Script, call, state_of
from stentor.tests.wire.responses import check_stream
from stentor.tests.wire.validate import assert_same_answer, check_object, frames_of

pytestmark = pytest.mark.anyio

NO_ARGUMENTS: Any = {"type": "object", "properties": {}}
FIND: Any = {"type": "function", "name": "find", "description": "Finds one.", "parameters": NO_ARGUMENTS}
NAMESPACE: Any = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers.",
    "tools": [{**FIND, "strict": False}, {"type": "custom", "name": "note", "description": "Writes."}],
}
CACHED: Any = {"type": "web_search", "external_web_access": False}
SHELL: Any = {"type": "local_shell"}
SEARCH: Any = {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": NO_ARGUMENTS}
ALL: list[Any] = [
    NAMESPACE,
    {"type": "function", "name": "find", "parameters": None, "strict": None},
    CACHED,
    SHELL,
    {"type": "shell", "environment": {"type": "local"}},
    {"type": "apply_patch"},
    SEARCH,
]
CODEX: dict[str, Any] = {
    "instructions": "You are a coding agent.",
    "tools": [{**FIND, "name": "exec", "strict": False}, NAMESPACE, CACHED, SHELL],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0197-aa",
    "reasoning": {"effort": "medium", "summary": "auto"},
    "text": {"verbosity": "low"},
}
"""The fields that OpenAI's command-line client sends."""


def messages(*items: dict[str, Any]) -> list[dict[str, Any]]:
    return messages_of(read_items(list(items), Limits(), random_id), lambda text, _use=b"": text)


def names(tools: list[Any]) -> list[str]:
    return [tool[tool["type"]]["name"] for tool in chat_tools(tools)]


# ---- what the model is offered


def test_each_tool_is_offered_as_a_function_by_a_name_of_its_own() -> None:
    check_tools(ALL)
    assert names(ALL) == ["crm__find", "crm__note", "find", "local_shell", "shell", "apply_patch", "tool_search"]
    first = chat_tools(ALL)[0]["function"]
    assert first["description"] == "Finds one.\n\nAbout all crm__ functions: Customers."
    described = [tool["function"] for tool in chat_tools(ALL)[3:6]]
    assert all(tool["strict"] and tool["description"] and tool["parameters"]["required"] for tool in described)


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "namespace", "tools": []}], "tools[0].name"),
        ([{"type": "namespace", "name": "crm"}], "tools[0].tools"),
        ([SHELL, {**NAMESPACE, "tools": [FIND, {"type": "function"}]}], "tools[1].tools[1].name"),
        ([{**NAMESPACE, "tools": [{"type": "mcp", "server_label": "x"}]}], "tools[0].tools[0].type"),
        ([{**NAMESPACE, "tools": [{**FIND, "parameters": 5}]}], "tools[0].tools[0].parameters"),
        ([NAMESPACE, {**FIND, "name": "crm__find"}], "tools[1].name"),
        ([{**FIND, "name": "shell"}, {"type": "shell"}], "tools[1].type"),
        ([{"type": "shell", "environment": {"type": "container_auto"}}], "tools[0].environment.type"),
        ([{"type": "shell", "environment": {"type": "local", "skills": [{}]}}], "tools[0].environment.skills"),
        ([{"type": "tool_search", "execution": "here"}], "tools[0].execution"),
        ([{"type": "web_search", "external_web_access": "no"}], "tools[0].external_web_access"),
        ([{"type": "computer_use_preview"}], "tools[0].type"),
    ],
)
def test_a_tool_that_is_none_is_refused_by_its_field(tools: list[Any], param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        check_tools(tools)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("choice", "meant"),
    [
        ({"type": "shell"}, ["shell"]),
        ({"type": "apply_patch"}, ["apply_patch"]),
        ({"type": "function", "name": "crm__find"}, ["crm__find"]),
        ({"type": "function", "name": "find"}, ["find"]),
        ({"type": "custom", "name": "crm__note"}, ["crm__note"]),
        ({"type": "allowed_tools", "mode": "auto", "tools": [SHELL, {"type": "namespace", "name": "crm"}]},
         ["local_shell", "crm__find", "crm__note"]),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}, SEARCH]}, ["tool_search"]),
        ({"type": "allowed_tools", "mode": "required",
          "tools": [{"type": "function", "name": "find", "namespace": "crm"}]}, ["crm__find"]),
    ],
)  # fmt: skip
def test_a_choice_means_the_functions_that_the_tools_have_become(choice: Any, meant: list[str]) -> None:
    check_choice(choice, ALL)
    said = chat_choice(choice, ALL)
    assert isinstance(said, dict)
    named = said["allowed_tools"]["tools"] if said["type"] == "allowed_tools" else [said]
    assert [one[one["type"]]["name"] for one in named] == meant


def test_a_choice_of_nothing_that_can_be_called_is_none() -> None:
    assert chat_choice({"type": "allowed_tools", "mode": "auto", "tools": [CACHED]}, ALL) == "none"


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"type": "apply_patch"}, "tool_choice.type"),
        ({"type": "local_shell"}, "tool_choice.type"),
        ({"type": "function", "name": "other"}, "tool_choice.name"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "shell"}]}, "tool_choice.tools[0].type"),
    ],
)
def test_a_choice_of_what_is_not_there_is_refused_by_its_field(choice: Any, param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        check_choice(choice, [SHELL, NAMESPACE])
    assert refused.value.param == param


def test_a_search_of_the_web_that_may_not_reach_it_and_one_of_tools_by_the_server_offer_nothing() -> None:
    tools: list[Any] = [
        CACHED,
        {"type": "web_search_preview", "external_web_access": False},
        {"type": "web_search_2025_08_26", "external_web_access": False},
        {"type": "tool_search"},
    ]
    check_tools(tools)
    assert names(tools) == []
    assert shown_tools(tools)[:2] == [CACHED, {"type": "web_search_preview"}]


def test_what_a_search_has_found_is_offered_once() -> None:
    more = {**NAMESPACE, "tools": [FIND, {**FIND, "name": "add"}]}
    found = loaded_tools([NAMESPACE], [more, more, {**FIND, "name": "other"}])
    assert names(found) == ["crm__find", "crm__note", "crm__add", "other"]


# ---- calls


@pytest.mark.parametrize(
    ("kind", "arguments", "shown"),
    [
        ("local_shell_call", {"command": ["ls"], "env": {"A": "b"}}, {"command": ["ls"], "env": {"A": "b"}}),
        ("shell_call", {"commands": ["ls", "pwd"], "timeout_ms": 9}, {"commands": ["ls", "pwd"], "timeout_ms": 9}),
        ("apply_patch_call", {"type": "delete_file", "path": "a"}, {"type": "delete_file", "path": "a"}),
        ("apply_patch_call", {"type": "create_file", "path": "a"}, {"type": "create_file", "path": "a", "diff": ""}),
        ("tool_search_call", {"query": "mail"}, {"query": "mail"}),
    ],
)
def test_a_call_is_an_item_and_the_item_the_same_call_again(kind: Any, arguments: Any, shown: Any) -> None:
    item = call_item(kind, "x_1", "call_1", json.dumps(arguments))
    assert item is not None
    (read,) = read_items([msgspec.to_builtins(item)], Limits(), random_id)
    name, again = function_of(read)
    assert kind.startswith(name)
    assert json.loads(again) == shown


@pytest.mark.parametrize("arguments", ["", "{", "[]", '{"command": "ls"}', '{"command": [1]}', '{"commands": ["ls"]}'])
def test_arguments_that_no_item_is_made_of_make_none(arguments: str) -> None:
    assert call_item("local_shell_call", "x_1", "call_1", arguments) is None


async def test_each_call_is_told_as_its_own_item_in_whole_and_stream() -> None:
    calls = "".join(
        (
            call("crm__find"),
            call("crm__note", input="hi"),
            call("find", a=1),
            call("local_shell", command=["ls", "-l"]),
            call("shell", commands=["ls", "echo é"], timeout_ms=5),
            call("apply_patch", type="update_file", path="a.py", diff="@@\n-a\n+b"),
            call("tool_search", query="mail"),
        )
    )
    async with in_memory(state_of(Script([calls, calls]), McpConfig())) as client:
        whole = await client.post(RESPONSES, json={"input": "?", "tools": ALL})
        streamed = await client.post(RESPONSES, json={"input": "?", "tools": ALL, "stream": True})
        answer = check_stream(streamed.text, EXTENSIONS)
        kept = (await client.get(f"{RESPONSES}/{answer['id']}")).json()
        again = await client.get(f"{RESPONSES}/{answer['id']}", params={"stream": "true"})
    check_object(Response, whole.content, EXTENSIONS)
    assert_same_answer(whole.json(), answer, ("id", "call_id", "created_at", "completed_at"))
    assert (kept, again.text) == (answer, streamed.text)
    find, note, own, local, shell, patch, search = answer["output"]
    assert (find["type"], find["name"], find["namespace"], find["arguments"]) == ("function_call", "find", "crm", "{}")
    assert (note["type"], note["name"], note["namespace"], note["input"]) == ("custom_tool_call", "note", "crm", "hi")
    assert (own["type"], own["name"], "namespace" in own) == ("function_call", "find", False)
    assert (local["type"], local["action"]["command"]) == ("local_shell_call", ["ls", "-l"])
    assert (shell["type"], shell["action"]["commands"]) == ("shell_call", ["ls", "echo é"])
    assert shell["environment"] == {"type": "local"}
    assert (patch["type"], patch["operation"]["diff"]) == ("apply_patch_call", "@@\n-a\n+b")
    assert (search["type"], search["arguments"], search["execution"]) == (
        "tool_search_call",
        {"query": "mail"},
        "client",
    )
    assert {item.get("status", "completed") for item in answer["output"]} == {"completed"}
    assert len({item["call_id"] for item in answer["output"]}) == 7
    events = [json.loads(frame.data) for frame in frames_of(streamed.text)[:-1]]
    of_shell = [event for event in events if event.get("output_index") == 4]
    assert [event["type"].removeprefix("response.") for event in of_shell] == [
        "output_item.added",
        *["shell_call_command.added", "shell_call_command.delta", "shell_call_command.done"] * 2,
        "output_item.done",
    ]
    assert of_shell[0]["item"]["status"] == "in_progress"


async def test_half_a_command_is_told_as_a_call_of_its_function_which_nobody_runs() -> None:
    said = call("local_shell", command=["rm", "-r", "/tmp/x"])
    body = {"input": "?", "tools": [SHELL], "max_output_tokens": len(said) - 30}
    async with in_memory(state_of(Script([said, said]), McpConfig())) as client:
        whole = await client.post(RESPONSES, json=body)
        answer = check_stream((await client.post(RESPONSES, json={**body, "stream": True})).text, EXTENSIONS)
    check_object(Response, whole.content, EXTENSIONS)
    (item,) = answer["output"]
    assert (answer["status"], item["type"], item["status"], item["name"]) == (
        *("incomplete", "function_call", "incomplete", "local_shell"),
    )


@pytest.mark.parametrize(
    "choice", [{"type": "shell"}, {"type": "apply_patch"}, {"type": "function", "name": "crm__find"}]
)
async def test_a_choice_is_repeated_as_the_sdk_has_it(choice: dict[str, str]) -> None:
    async with in_memory(state_of(Script([call("shell", commands=[])]), McpConfig())) as client:
        answer = await client.post(RESPONSES, json={"input": "?", "tools": ALL, "tool_choice": choice})
    assert check_object(Response, answer.content, EXTENSIONS).status == "completed"
    assert answer.json()["tool_choice"] == choice


# ---- what comes back


def test_items_of_namespaces_and_client_tools_are_calls_of_the_functions_and_their_results() -> None:
    found = messages(
        {"type": "function_call", "call_id": "c1", "name": "find", "namespace": "crm", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "Ann"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "note", "namespace": "crm", "input": "hi"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "ok"},
        {"type": "local_shell_call", "id": "lsh_1", "call_id": "c3", "status": "completed",
         "action": {"type": "exec", "command": ["ls"], "env": {}, "timeout_ms": None}},
        {"type": "local_shell_call_output", "id": "c3", "output": "a.py"},
        {"type": "shell_call", "call_id": "c4", "action": {"commands": ["ls"]}},
        {"type": "shell_call_output", "call_id": "c4",
         "output": [{"stdout": "b", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
        {"type": "apply_patch_call", "call_id": "c5", "status": "completed",
         "operation": {"type": "delete_file", "path": "a.py"}},
        {"type": "apply_patch_call_output", "call_id": "c5", "status": "failed", "output": "no such file"},
        {"type": "tool_search_call", "call_id": "c6", "execution": "client", "arguments": {"query": "x"}},
        {"type": "tool_search_output", "call_id": "c6", "execution": "client", "tools": [NAMESPACE]},
    )  # fmt: skip
    assert [message["role"] for message in found] == ["assistant", "tool"] * 6
    called = [message["tool_calls"][0]["function"] for message in found[::2]]
    assert [(one["name"], json.loads(one["arguments"])) for one in called] == [
        ("crm__find", {}),
        ("crm__note", {"input": "hi"}),
        ("local_shell", {"command": ["ls"]}),
        ("shell", {"commands": ["ls"]}),
        ("apply_patch", {"type": "delete_file", "path": "a.py"}),
        ("tool_search", {"query": "x"}),
    ]
    results = found[1::2]
    assert [message["name"] for message in results] == [one["name"] for one in called]
    assert [message["content"] for message in results[:5]] == [
        *("Ann", "ok", "a.py"),
        '[{"stdout":"b","stderr":"","outcome":{"type":"exit","exit_code":0}}]',
        "Error: no such file",
    ]
    assert [tool["name"] for tool in json.loads(results[5]["content"])] == ["crm__find", "crm__note"]


@pytest.mark.parametrize("named", [{"id": "lsh_1"}, {"id": "c3"}, {"call_id": "c3"}, {"id": "x", "call_id": "c3"}])
def test_the_output_of_a_local_shell_finds_its_call(named: dict[str, str]) -> None:
    asked = {"type": "local_shell_call", "id": "lsh_1", "call_id": "c3", "action": {"command": ["ls"]}}
    output = {"type": "local_shell_call_output", "output": "a.py", **named}
    made, result = messages(asked, output)
    assert result["tool_call_id"] == made["tool_calls"][0]["id"] == "c3"
    user = {"role": "user", "content": "hi"}
    assert list(droppable(read_items([asked, output, user], Limits(), random_id))) == [2]


def test_a_search_that_another_server_ran_is_no_call_of_the_model() -> None:
    assert messages(
        {"type": "tool_search_call", "execution": "server", "arguments": {}},
        {"type": "tool_search_output", "execution": "server", "tools": [FIND]},
        {"role": "user", "content": "hi"},
    ) == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "local_shell_call", "call_id": "c"}, "input[0].action"),
        ({"type": "local_shell_call", "call_id": "c", "action": {"command": "ls"}}, "input[0].action.command"),
        ({"type": "shell_call_output", "call_id": "c"}, "input[0].output"),
        ({"type": "shell_call_output", "call_id": "c", "output": [{"stdout": ""}]}, "input[0].output[0].stderr"),
        ({"type": "apply_patch_call", "call_id": "c", "operation": {"type": "x"}}, "input[0].operation.type"),
        ({"type": "apply_patch_call_output", "call_id": "c"}, "input[0].status"),
        ({"type": "tool_search_call", "arguments": "x"}, "input[0].arguments"),
        ({"type": "tool_search_output", "tools": [{"type": "function"}]}, "input[0].tools[0].name"),
        ({"type": "tool_search_output", "tools": [SHELL]}, "input[0].tools[0].type"),
        ({"type": "additional_tools", "role": "user", "tools": []}, "input[0].role"),
        ({"type": "additional_tools", "role": "developer"}, "input[0].tools"),
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": "", "namespace": 5}, "input[0].namespace"),
    ],
)
def test_an_item_that_is_none_is_refused_by_its_field(item: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        read_items([item], Limits(), random_id)
    assert (refused.value.param or "").startswith(param)


def test_a_patch_that_was_applied_without_a_word_says_so() -> None:
    said = {"type": "apply_patch_call_output", "status": "completed", "output": None}
    assert output_text(said) == "The patch was applied."


async def test_two_turns_as_codex_takes_them() -> None:
    script = Script([call("local_shell", command=["ls"]) + call("crm__find"), "Done."])
    user = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What is here?"}]}
    async with in_memory(state_of(script, McpConfig())) as client:
        first = await client.post(RESPONSES, json={**CODEX, "input": [user], "stream": True})
        answer = check_stream(first.text, EXTENSIONS)
        shell, find = answer["output"]
        results = [
            {"type": "function_call_output", "call_id": shell["call_id"], "output": "a.py"},
            {"type": "function_call_output", "call_id": find["call_id"], "output": "Ann"},
        ]
        items = [user, shell, {**find, "id": None}, *results]
        second = await client.post(RESPONSES, json={**CODEX, "input": items, "stream": True})
        answer = check_stream(second.text, EXTENSIONS)
    assert answer["output"][0]["content"][0]["text"] == "Done."
    assert answer["tools"][1]["tools"][0]["name"] == "find"
    assert script.prompts[0].startswith("<tools>exec crm__find crm__note local_shell \n")
    calls = '<call>local_shell{"command": ["ls"]}<call>crm__find{}'
    assert script.prompts[1].endswith(f"<assistant>{calls}\n<tool>a.py\n<tool>Ann\n<assistant>")


async def test_tools_that_a_search_has_found_can_be_called_and_come_back_in_their_namespace() -> None:
    script = Script([call("tool_search", query="crm"), call("crm__find"), "Done."])
    async with in_memory(state_of(script, McpConfig())) as client:
        first = (await client.post(RESPONSES, json={"input": "?", "tools": [SEARCH]})).json()
        output = {
            "type": "tool_search_output",
            "call_id": first["output"][0]["call_id"],
            "execution": "client",
            "status": "completed",
            "tools": [NAMESPACE],
        }
        body = {"previous_response_id": first["id"], "input": [output], "tools": [SEARCH], "stream": True}
        answer = check_stream((await client.post(RESPONSES, json=body)).text, EXTENSIONS)
        items = (await client.get(f"{RESPONSES}/{answer['id']}/input_items")).json()
        check_object(ResponseItemList, items, EXTENSIONS)
        (found,) = answer["output"]
        more = {"type": "function_call_output", "call_id": found["call_id"], "output": "Ann"}
        later = {"previous_response_id": answer["id"], "input": [more], "tools": [SEARCH]}
        assert (await client.post(RESPONSES, json=later)).json()["output"][0]["content"][0]["text"] == "Done."
    assert (found["name"], found["namespace"]) == ("find", "crm")
    assert [tool["type"] for tool in answer["tools"]] == ["tool_search"], "the response repeats what the request had"
    assert script.prompts[1].startswith("<tools>tool_search crm__find crm__note \n")
    assert script.prompts[2].startswith("<tools>tool_search crm__find crm__note \n")


async def test_additional_tools_of_an_item_can_be_called_from_then_on() -> None:
    script = Script([call("crm__find"), "Done."])
    added = {"type": "additional_tools", "role": "developer", "tools": [NAMESPACE]}
    async with in_memory(state_of(script, McpConfig())) as client:
        first = (await client.post(RESPONSES, json={"input": [{"role": "user", "content": "?"}, added]})).json()
        (made,) = first["output"]
        output = {"type": "function_call_output", "call_id": made["call_id"], "output": "Ann"}
        await client.post(RESPONSES, json={"previous_response_id": first["id"], "input": [output]})
    assert (made["name"], made["namespace"]) == ("find", "crm")
    assert [prompt.startswith("<tools>crm__find crm__note \n") for prompt in script.prompts] == [True, True]


@pytest.mark.parametrize(
    ("items", "tools", "param"),
    [
        ([], [CACHED, {**NAMESPACE, "tools": [FIND, {**FIND, "name": "no name"}]}], "tools[1].tools[1].name"),
        ([], [CACHED, {**FIND, "parameters": {"type": "string"}}], "tools[1].parameters.type"),
        ([{"type": "tool_search_output", "tools": [{**FIND, "name": "no name"}]}], [SHELL], "input"),
    ],
)
async def test_what_is_wrong_with_a_function_is_told_of_the_tool_that_it_is_of(
    items: list[Any], tools: list[Any], param: str
) -> None:
    async with in_memory(state_of(Script([]), McpConfig())) as client:
        body = {"input": [{"role": "user", "content": "hi"}, *items], "tools": tools}
        refused = await client.post(RESPONSES, json=body)
        counted = await client.post(f"{RESPONSES}/input_tokens", json=body)
    for answer in (refused, counted):
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_items_of_all_kinds_are_kept_and_listed_as_the_sdk_has_them() -> None:
    items: list[Any] = [
        {"role": "user", "content": "hi"},
        {"type": "local_shell_call", "call_id": "c3", "action": {"command": ["ls"], "env": {}}, "status": "completed"},
        {"type": "local_shell_call_output", "call_id": "c3", "output": "a.py"},
        {"type": "shell_call", "call_id": "c4", "action": {"commands": ["ls"]}},
        {"type": "shell_call_output", "call_id": "c4",
         "output": [{"stdout": "b", "stderr": "", "outcome": {"type": "timeout"}}]},
        {"type": "apply_patch_call", "call_id": "c5", "status": "completed",
         "operation": {"type": "create_file", "path": "a", "diff": "+a"}},
        {"type": "apply_patch_call_output", "call_id": "c5", "status": "completed"},
        {"type": "tool_search_call", "call_id": "c6", "execution": "client", "arguments": {"query": "x"}},
        {"type": "tool_search_output", "call_id": "c6", "execution": "client", "tools": [NAMESPACE]},
        {"type": "additional_tools", "role": "developer", "tools": [FIND]},
        {"type": "function_call", "call_id": "c7", "name": "find", "namespace": "crm", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c7", "output": "Ann"},
    ]  # fmt: skip
    async with in_memory(state_of(Script(["Hi."]), McpConfig())) as client:
        made = (await client.post(RESPONSES, json={"input": items})).json()
        listed = await client.get(f"{RESPONSES}/{made['id']}/input_items", params={"order": "asc"})
    check_object(ResponseItemList, listed.content, EXTENSIONS)
    assert [item["type"] for item in listed.json()["data"][1:]] == [item["type"] for item in items[1:]]
