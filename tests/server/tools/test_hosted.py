"""Tools of OpenAI's own, which the operator's servers stand for: shown as OpenAI shows them, and known later."""

import json
from typing import Any

import msgspec
import openai
import pytest
from openai.types.conversations import ConversationItemList
from openai.types.responses import Response, ResponseCodeInterpreterToolCall, ResponseFunctionWebSearch
from openai.types.responses.response_item_list import ResponseItemList

from stentor.server.api.responses.items import action_of, code_of
from stentor.server.api.responses.replay import Replay
from stentor.server.config.config import McpConfig, ToolServer
from stentor.tests.server.harness import in_memory
from stentor.tests.server.responses.shapes import EXTENSIONS, RESPONSES
from stentor.tests.server.tools.scripted import Script, call, state_of
from stentor.tests.wire.responses import check_stream
from stentor.tests.wire.validate import assert_same_answer, check_object, frames_of

pytestmark = pytest.mark.anyio

SEARCH: Any = {"type": "web_search"}
INTERPRETER: Any = {"type": "code_interpreter", "container": {"type": "auto"}}


def config_of(url: str) -> McpConfig:
    return McpConfig(servers=(ToolServer("browser", f"{url}/mcp"), ToolServer("python", f"{url}/mcp")))


def kinds_of(item: str, text: str) -> list[str]:
    """Of the events that name the item, in their order."""
    events = [json.loads(frame.data) for frame in frames_of(text)[:-1]]
    return [event["type"] for event in events if item in (event.get("item_id"), event.get("item", {}).get("id"))]


async def test_calls_are_told_in_events_as_openai_has_them(tools_url: str) -> None:
    script = [call("browser.add", a=1, b=5) + call("python.add", a=2, b=5), "13."]
    body = {"input": "?", "tools": [SEARCH, INTERPRETER]}
    async with in_memory(state_of(Script([*script, *script]), config_of(tools_url))) as client:
        whole = await client.post(RESPONSES, json=body)
        response = await client.post(RESPONSES, json={**body, "stream": True})
    check_object(Response, whole.json(), EXTENSIONS)
    answer = check_stream(response.text, EXTENSIONS)
    assert_same_answer(whole.json(), answer, ("id", "created_at", "completed_at"))
    searched, run = (item for item in answer["output"] if item["type"].endswith("_call"))
    assert (searched["type"], searched["status"], searched["output"]) == ("web_search_call", "completed", "6")
    assert searched["action"] == {"type": "search", "query": "", "queries": [""]}
    assert (run["type"], run["status"], run["container_id"]) == ("code_interpreter_call", "completed", "auto")
    assert run["outputs"] == [{"type": "logs", "logs": "7"}]
    assert kinds_of(searched["id"], response.text) == [
        "response.output_item.added", "response.web_search_call.in_progress", "response.web_search_call.searching",
        "response.web_search_call.completed", "response.output_item.done",
    ]  # fmt: skip
    assert kinds_of(run["id"], response.text) == [
        "response.output_item.added", "response.code_interpreter_call.in_progress",
        "response.code_interpreter_call_code.delta", "response.code_interpreter_call_code.done",
        "response.code_interpreter_call.interpreting", "response.code_interpreter_call.completed",
        "response.output_item.done",
    ]  # fmt: skip


async def test_a_call_that_fails_says_so_in_its_status(tools_url: str) -> None:
    script = Script([call("browser.fail", why="x") + call("python.fail", why="y"), "No."])
    async with in_memory(state_of(script, config_of(tools_url))) as client:
        response = await client.post(RESPONSES, json={"input": "?", "tools": [SEARCH, INTERPRETER], "stream": True})
    answer = check_stream(response.text, EXTENSIONS)
    calls = [item for item in answer["output"] if item["type"].endswith("_call")]
    assert [(item["type"], item["status"]) for item in calls] == [
        ("web_search_call", "failed"), ("code_interpreter_call", "failed")
    ]  # fmt: skip
    assert all(item["error"] for item in calls)
    assert not any(kind.endswith("_call.completed") for item in calls for kind in kinds_of(item["id"], response.text))


async def test_later_turns_know_what_came_of_calls(tools_url: str) -> None:
    script = Script([call("browser.add", a=40, b=2) + call("python.add", a=50, b=3), "Both.", "Yes.", "Yes.", "Yes."])
    async with in_memory(state_of(script, config_of(tools_url))) as client:
        conversation = (await client.post("/v1/conversations", json={})).json()["id"]
        body = {"tools": [SEARCH, INTERPRETER], "conversation": conversation}
        first = (await client.post(RESPONSES, json={**body, "input": "?"})).json()
        held = (await client.get(f"/v1/conversations/{conversation}/items", params={"order": "asc"})).json()
        check_object(ConversationItemList, held, EXTENSIONS)
        kept = (await client.get(f"{RESPONSES}/{first['id']}")).json()
        check_object(Response, kept, EXTENSIONS)
        assert kept["output"] == first["output"]
        again = {"input": [{"role": "user", "content": "?"}, *first["output"], {"role": "user", "content": "Sure?"}]}
        ids = []
        for later in (
            {**body, "input": "Sure?"},
            {"tools": body["tools"], "previous_response_id": first["id"], "input": "Sure?"},
            {"tools": body["tools"], **again},
        ):
            answer = await client.post(RESPONSES, json=later)
            assert answer.status_code == 200, answer.text
            assert [item["type"] for item in answer.json()["output"]] == ["message"]
            ids.append(answer.json()["id"])
        brought = (await client.get(f"{RESPONSES}/{ids[-1]}/input_items")).json()
        check_object(ResponseItemList, brought, EXTENSIONS)
    prompts = [script.prompts[-1 - index] for index in range(3)]
    assert all("42" in prompt and "53" in prompt for prompt in prompts), prompts


@pytest.mark.parametrize(
    "fields",
    [
        {"action": 1},
        {"type": "code_interpreter_call", "code": 1},
        {"type": "code_interpreter_call", "outputs": [1]},
        {"type": "code_interpreter_call", "container_id": 2},
    ],
)
async def test_an_item_that_is_none_is_refused_by_its_field(tools_url: str, fields: dict[str, Any]) -> None:
    item = {"type": "web_search_call", "id": "ws_1", "server_label": "browser", "name": "search", "arguments": "{}"}
    async with in_memory(state_of(Script(["Hi."]), config_of(tools_url))) as client:
        response = await client.post(RESPONSES, json={"input": [{**item, **fields}]})
    field = next(name for name in fields if name != "type")
    assert (response.status_code, response.json()["error"]["param"]) == (400, f"input[0].{field}")


@pytest.mark.parametrize(
    ("name", "arguments", "action"),
    [
        ("search", '{"query": "a", "topn": 3}', {"type": "search", "query": "a", "queries": ["a"]}),
        ("open", '{"id": "https://a.example", "cursor": 1}', {"type": "open_page", "url": "https://a.example"}),
        ("open", '{"id": 3}', {"type": "open_page", "url": None}),
        ("find", '{"pattern": "x"}', {"type": "find_in_page", "pattern": "x", "url": ""}),
        ("search", "no JSON", {"type": "search", "query": "", "queries": [""]}),
        ("other", "[1]", {"type": "search", "query": "", "queries": [""]}),
    ],
)
def test_what_a_search_did_is_read_from_its_arguments(name: str, arguments: str, action: dict[str, Any]) -> None:
    assert action_of(name, arguments) == action


def test_code_is_what_the_tool_was_given() -> None:
    assert code_of('{"code": "print(1)"}') == "print(1)"
    assert code_of('{"script": "x"}') == '{"script": "x"}'
    assert code_of("print(1)") == "print(1)"


@pytest.mark.parametrize("kind", ["web_search_call.searching", "code_interpreter_call.interpreting"])
def test_a_call_that_was_begun_is_known_to_a_later_server(kind: str) -> None:
    event = msgspec.json.encode({"type": f"response.{kind}", "item_id": "x"})
    assert Replay([event], ()).was_begun("x")
    assert not Replay([event], ()).was_begun("y")


async def test_the_sdk_reads_the_stream(tools_url: str) -> None:
    script = Script([call("browser.add", a=1, b=5) + call("python.add", a=2, b=5), "13."])
    tools: Any = [SEARCH, INTERPRETER]
    async with (
        in_memory(state_of(script, config_of(tools_url))) as http,
        openai.AsyncOpenAI(api_key="none", base_url="http://server/v1", http_client=http) as client,  # type: ignore[arg-type]
        client.responses.stream(model="fake", input="?", tools=tools) as stream,
    ):
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert {"response.web_search_call.completed", "response.code_interpreter_call.completed"} <= set(kinds)
    found = {item.type: item for item in final.output}
    assert isinstance(found["web_search_call"], ResponseFunctionWebSearch)
    interpreted = found["code_interpreter_call"]
    assert isinstance(interpreted, ResponseCodeInterpreterToolCall)
    assert interpreted.outputs is not None
    assert final.output_text == "13."
