"""Tools on another server: a real one is called for a model that says what it is told to."""

import json
from typing import Any

import httpx
import pytest
from openai.types.conversations import ConversationItemList
from openai.types.responses import Response
from openai.types.responses.response_item_list import ResponseItemList

from stentor.protocols.common.limits import Limits
from stentor.server.app.state import ServerState
from stentor.server.config.config import McpConfig, ToolServer
from stentor.server.parsing.output import settle_output
from stentor.tests.server.harness import in_memory
from stentor.tests.server.responses.shapes import EXTENSIONS, RESPONSES
from stentor.tests.server.tools.scripted import TEMPLATE, Script, call, state_of
from stentor.tests.wire.responses import check_stream
from stentor.tests.wire.validate import assert_same_answer, check_object, frames_of

pytestmark = pytest.mark.anyio


def tool(url: str, **fields: Any) -> dict[str, Any]:
    return {"type": "mcp", "server_label": "calc", "server_url": f"{url}/mcp", "require_approval": "never", **fields}


def config_of(url: str, **fields: Any) -> McpConfig:
    return McpConfig(urls=(f"{url}/",), **fields)


async def post(url: str, turns: list[str], *, config: McpConfig | None = None, **body: Any) -> tuple[Any, Script]:
    script = Script(turns)
    body = {"input": "What is it?", "tools": [tool(url)], **body}
    async with in_memory(state_of(script, config or config_of(url))) as client:
        response = await client.post(RESPONSES, json=body)
    return response, script


def items(response: httpx.Response, kind: str) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    return [item for item in response.json()["output"] if item["type"] == kind]


async def test_the_model_calls_a_tool_and_goes_on_with_its_result(tools_url: str) -> None:
    response, script = await post(tools_url, [call("calc__add", a=2, b=40), "It is 42."])
    check_object(Response, response.content, EXTENSIONS)
    body = response.json()
    assert [item["type"] for item in body["output"]] == ["mcp_list_tools", "mcp_call", "message"]
    listed, called, message = body["output"]
    assert {one["name"] for one in listed["tools"]} == {
        "add",
        "echo",
        "slow",
        "wait",
        "python",
        "fail",
        "big",
        "let_in",
    }
    assert (called["name"], called["server_label"], called["status"]) == ("add", "calc", "completed")
    assert (json.loads(called["arguments"]), called["output"], called["error"]) == ({"a": 2, "b": 40}, "42", None)
    assert message["content"][0]["text"] == "It is 42."
    assert body["status"] == "completed"
    assert script.prompts[0].startswith("<tools>calc__add calc__echo ")
    assert script.prompts[1].endswith('<assistant><call>calc__add{"a": 2, "b": 40}\n<tool>42\n<assistant>')


@pytest.mark.parametrize("parallel", [True, False])
async def test_every_event_is_valid_and_the_stream_says_what_the_whole_says(tools_url: str, parallel: bool) -> None:
    turns = [
        "Let me see. " + call("calc__add", a=1, b=2) + "\n" + call("calc__echo", text="héllo"),
        call("calc__fail", why="out of ink"),
        "Done.",
    ]
    whole, _ = await post(tools_url, turns, parallel_tool_calls=parallel)
    streamed, _ = await post(tools_url, turns, parallel_tool_calls=parallel, stream=True)
    answer = check_stream(streamed.text, EXTENSIONS)
    ignored = ("id", "created_at", "completed_at")
    assert_same_answer(whole.json(), answer, ignored)
    kinds = [json.loads(frame.data)["type"] for frame in frames_of(streamed.text)[:-1]]
    assert kinds[:5] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.mcp_list_tools.in_progress",
        "response.mcp_list_tools.completed",
    ]
    calls = items(whole, "mcp_call")
    assert [one["status"] for one in calls] == ["completed"] * (2 if parallel else 1) + ["failed"]
    error = calls[-1]["error"]
    assert error["type"] == "mcp_tool_execution_error"
    assert "out of ink" in error["content"][0]["text"]
    assert kinds.count("response.mcp_call.failed") == 1
    assert kinds.count("response.mcp_call_arguments.done") == len(calls)


async def test_a_call_of_the_client_s_own_ends_the_response_with_the_others_made(
    tools_url: str,
) -> None:
    mine = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
    turns = [call("weather") + call("calc__add", a=1, b=1), "never said"]
    response, script = await post(tools_url, turns, tools=[mine, tool(tools_url)])
    check_object(Response, response.content, EXTENSIONS)
    assert len(script.prompts) == 1
    assert items(response, "function_call")[0]["name"] == "weather"
    assert items(response, "mcp_call")[0]["output"] == "2"
    assert response.json()["status"] == "completed"


async def test_a_call_waits_for_its_approval_and_is_then_made_once(tools_url: str) -> None:
    script = Script([call("calc__add", a=3, b=4), "It is 7.", "As I said.", "I did."])
    asking = tool(tools_url, require_approval={"never": {"tool_names": ["echo"]}})
    async with in_memory(state_of(script, config_of(tools_url))) as client:
        first = await client.post(RESPONSES, json={"input": "3 and 4?", "tools": [asking]})
        check_object(Response, first.content, EXTENSIONS)
        (request,) = items(first, "mcp_approval_request")
        assert (request["name"], json.loads(request["arguments"])) == ("add", {"a": 3, "b": 4})
        answer = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
        body = {"input": [answer], "tools": [asking], "previous_response_id": first.json()["id"]}
        second = await client.post(RESPONSES, json={**body, "stream": True})
        ended = check_stream(second.text, EXTENSIONS)
        assert [item["type"] for item in ended["output"]] == ["mcp_call", "message"], "it is not listed once more"
        assert ended["output"][0]["approval_request_id"] == request["id"]
        assert ended["output"][0]["output"] == "7"
        third = await client.post(
            RESPONSES, json={"input": "Sure?", "tools": [asking], "previous_response_id": ended["id"]}
        )
        assert [item["type"] for item in third.json()["output"]] == ["message"]
        again = await client.post(RESPONSES, json={**body, "previous_response_id": ended["id"]})
        assert [item["type"] for item in again.json()["output"]] == ["message"], "an approval is good for one call"
    assert script.prompts[1].endswith('<assistant><call>calc__add{"a": 3, "b": 4}\n<tool>7\n<assistant>')
    assert script.prompts[2].endswith("<tool>7\n<assistant>It is 7.\n<user>Sure?\n<assistant>")


async def test_what_is_not_approved_is_not_called_and_the_model_hears_why(tools_url: str) -> None:
    script = Script([call("calc__echo", text="secret"), "Then not."])
    asking = tool(tools_url, require_approval="always")
    async with in_memory(state_of(script, config_of(tools_url))) as client:
        first = await client.post(RESPONSES, json={"input": "Say it.", "tools": [asking]})
        (request,) = items(first, "mcp_approval_request")
        answer = {
            "type": "mcp_approval_response",
            "approval_request_id": request["id"],
            "approve": False,
            "reason": "too loud",
        }
        conversation = [{"role": "user", "content": "Say it."}, *first.json()["output"], answer]
        second = await client.post(RESPONSES, json={"input": conversation, "tools": [asking], "store": False})
    assert [item["type"] for item in second.json()["output"]] == ["message"]
    assert "<tool>Error: the user did not approve this call: too loud\n" in script.prompts[1]


async def test_an_approval_of_what_nobody_asked_for_is_refused(tools_url: str) -> None:
    answer = {"type": "mcp_approval_response", "approval_request_id": "mcpr_none", "approve": True}
    response, _ = await post(tools_url, [], input=[answer])
    assert (response.status_code, response.json()["error"]["param"]) == (400, "input[0].approval_request_id")


async def test_only_tools_that_are_allowed_are_offered(tools_url: str) -> None:
    for allowed, names in (
        (["echo"], {"echo"}),
        ({"read_only": True}, {"add", "big", "let_in"}),
        ({"read_only": True, "tool_names": ["add", "echo"]}, {"add"}),
    ):
        response, script = await post(
            tools_url, [call("calc__fail", why="x") + "!"], tools=[tool(tools_url, allowed_tools=allowed)]
        )
        assert {one["name"] for one in items(response, "mcp_list_tools")[0]["tools"]} == names
        assert not items(response, "mcp_call")
        assert "calc__fail" not in script.prompts[0]


async def test_a_list_that_a_client_brings_does_not_open_what_it_does_not_allow(tools_url: str) -> None:
    listed = {
        "type": "mcp_list_tools",
        "server_label": "calc",
        "tools": [{"name": "add", "input_schema": {}}, {"name": "gone", "input_schema": {}}],
    }
    conversation = [{"role": "user", "content": "?"}, listed]
    turns = [call("calc__gone"), "So be it."]
    response, script = await post(tools_url, turns, input=conversation)
    assert [item["type"] for item in response.json()["output"]] == ["mcp_call", "message"]
    assert response.json()["output"][0]["status"] == "failed"
    assert script.prompts[0].startswith("<tools>calc__add calc__gone \n")
    _, script = await post(tools_url, ["Hi."], input=conversation, tools=[tool(tools_url, allowed_tools=["add"])])
    assert script.prompts[0].startswith("<tools>calc__add \n")


async def test_secrets_reach_their_server_and_nobody_else(tools_url: str) -> None:
    for secret in ({"authorization": "s3cret"}, {"headers": {"Authorization": "Bearer s3cret", "x-more": "s3cret"}}):
        script = Script([call("calc__slow", seconds=1.5), call("calc__let_in"), "In."])
        state = state_of(script, config_of(tools_url))
        asked = tool(tools_url, **secret, allowed_tools=["let_in", "slow"])
        asked["server_url"] += "?key=s3cret"
        async with in_memory(state) as client:
            response = await client.post(RESPONSES, json={"input": "?", "tools": [asked], "background": True})
            (running,) = await stored(state)
            assert b"server_label" in running, "what it takes to go on with it"
            got = await client.get(f"{RESPONSES}/{response.json()['id']}", params={"stream": "true"})
            answer = check_stream(got.text, EXTENSIONS)
        assert answer["output"][2]["output"] == "Bearer s3cret"
        for text in (running, *await stored(state), json.dumps(answer["tools"]).encode()):
            assert b"s3cret" not in text


async def stored(state: ServerState) -> list[bytes]:
    """All there is of each response."""
    rows = await state.store.read(lambda db: db.execute("SELECT object, request FROM responses").fetchall())
    return [b"".join(column or b"" for column in row) for row in rows]


async def test_a_long_result_is_cut_with_a_mark(tools_url: str) -> None:
    config = config_of(tools_url, max_result_chars=100)
    response, _ = await post(tools_url, [call("calc__big", chars=5000), "Much."], config=config)
    output = items(response, "mcp_call")[0]["output"]
    assert output.startswith("x" * 100 + "\n[… cut")
    assert "5000 characters" in output
    assert len(output) < 250


async def test_a_call_that_takes_too_long_is_given_up(tools_url: str) -> None:
    config = config_of(tools_url, call_timeout=0.5)
    response, script = await post(tools_url, [call("calc__slow", seconds=30), "Too slow."], config=config)
    called = items(response, "mcp_call")[0]
    assert (called["status"], called["error"]["type"]) == ("failed", "mcp_protocol_error")
    assert "0.5 seconds" in called["error"]["message"]
    assert "0.5 seconds" in script.prompts[1]


async def test_no_more_calls_are_made_than_the_client_lets(tools_url: str) -> None:
    turns = [call("calc__add", a=1, b=1) + call("calc__add", a=2, b=2), "Enough."]
    response, script = await post(tools_url, turns, max_tool_calls=1)
    first, second = items(response, "mcp_call")
    assert (first["output"], second["status"]) == ("2", "failed")
    assert "as many calls" in second["error"]["message"]
    assert "<tools>" not in script.prompts[1]


async def test_the_model_is_not_let_call_for_ever(tools_url: str) -> None:
    turns = [call("calc__add", a=n, b=n) for n in range(9)]
    response, script = await post(tools_url, turns, config=config_of(tools_url, max_rounds=2))
    assert len(items(response, "mcp_call")) == 2
    assert len(script.prompts) == 3
    assert "<tools>" not in script.prompts[2]


async def test_tokens_of_all_turns_count_towards_the_most_that_are_wanted(tools_url: str) -> None:
    first = call("calc__add", a=1, b=1)
    response, _ = await post(tools_url, [first, "A long story."], max_output_tokens=len(first) + 1 + 6)
    body = response.json()
    assert (body["status"], body["incomplete_details"]["reason"]) == ("incomplete", "max_output_tokens")
    assert items(response, "message")[0]["content"][0]["text"] == "A long"
    assert body["usage"]["output_tokens"] == len(first) + 1 + 6


@pytest.mark.parametrize(
    ("choice", "tools", "again"),
    [
        ({"type": "mcp", "server_label": "calc", "name": "add"}, ("required", True), "auto"),
        ("required", ("required", False), "auto"),
    ],
)
async def test_what_must_be_called_must_be_called_once(
    tools_url: str, choice: Any, tools: tuple[str, bool], again: str
) -> None:
    response, script = await post(tools_url, [call("calc__add", a=1, b=1), "Done."], tool_choice=choice)
    assert response.status_code == 200, response.text
    assert script.engine.grammars[0]
    assert script.engine.grammars[1] != script.engine.grammars[0]
    assert response.json()["tool_choice"] == choice


async def test_a_server_of_before_streamable_http_is_spoken_to_as_it_was(tools_url: str) -> None:
    old = {**tool(tools_url), "server_url": f"{tools_url}/sse"}
    response, _ = await post(tools_url, [call("calc__add", a=20, b=1), "Ok."], tools=[old])
    assert items(response, "mcp_call")[0]["output"] == "21"


async def test_the_operator_s_servers_are_named_by_their_label_alone(tools_url: str) -> None:
    config = McpConfig(servers=(ToolServer("browser", f"{tools_url}/mcp"),))
    by_label = {"type": "mcp", "server_label": "browser"}
    for named, kind in ((by_label, "mcp_call"), ({"type": "web_search_preview"}, "web_search_call")):
        response, _ = await post(tools_url, [call("browser.add", a=1, b=5), "6."], config=config, tools=[named])
        assert items(response, kind)[0]["output"] == "6"
        check_object(Response, response.content, EXTENSIONS)
    for missing, field in (
        ({"type": "code_interpreter", "container": {"type": "auto"}}, "tools[0].type"),
        ({"type": "mcp", "server_label": "other"}, "tools[0].server_url"),
        ({**by_label, "authorization": "mine"}, "tools[0]"),
    ):
        response, _ = await post(tools_url, [], config=config, tools=[missing])
        assert (response.status_code, response.json()["error"]["param"]) == (400, field)


async def test_a_tool_that_cannot_be_offered_is_named_with_its_server(tools_url: str) -> None:
    script = Script(["Hi."])
    limits = Limits(max_schema_chars=20)
    async with in_memory(state_of(script, config_of(tools_url), limits=limits)) as client:
        response = await client.post(RESPONSES, json={"input": "?", "tools": [tool(tools_url)]})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "tools[0]")
    assert "`add` of the server `calc`" in error["message"]


async def test_the_prompt_that_is_counted_has_the_tools_that_the_conversation_lists(tools_url: str) -> None:
    script = Script(["Hi."])
    async with in_memory(state_of(script, config_of(tools_url))) as client:
        body = {"input": "?", "tools": [tool(tools_url)]}
        without = (await client.post(f"{RESPONSES}/input_tokens", json=body)).json()["input_tokens"]
        listed = (await client.post(RESPONSES, json=body)).json()
        brought = {**body, "input": [{"role": "user", "content": "?"}, listed["output"][0]]}
        counted = (await client.post(f"{RESPONSES}/input_tokens", json=brought)).json()["input_tokens"]
    assert counted == listed["usage"]["input_tokens"] > without


async def test_calls_are_measured_by_what_came_of_them(tools_url: str) -> None:
    script = Script([call("calc__add", a=1, b=2) + call("calc__fail", why="x"), "Done."])
    state = state_of(script, config_of(tools_url))
    async with in_memory(state) as client:
        await client.post(RESPONSES, json={"input": "?", "tools": [tool(tools_url)]})
    page = state.metrics.render().decode()
    for outcome, count in (("completed", 1), ("failed", 1), ("cut_off", 0)):
        labels = f'{{model_name="fake/model",outcome="{outcome}"}}'
        assert f"stentor:tool_call_seconds_count{labels} {count}.0" in page


async def test_gpt_oss_calls_a_browser_of_the_operator_s_as_its_own(tools_url: str) -> None:
    turns = [
        "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant"
        '<|channel|>analysis to=browser.add code<|message|>{"a": 4, "b": 5}<|call|>',
        "<|channel|>final<|message|>Nine.<|return|>",
    ]
    script = Script(turns)
    config = McpConfig(servers=(ToolServer("browser", f"{tools_url}/mcp"),))
    state = state_of(script, config, output=settle_output("gpt_oss", "gpt_oss", TEMPLATE, ""))
    async with in_memory(state) as client:
        response = await client.post(RESPONSES, json={"input": "?", "tools": [{"type": "web_search_preview"}]})
    (searched,) = items(response, "web_search_call")
    assert (searched["output"], searched["action"]["type"], searched["status"]) == ("9", "search", "completed")
    assert items(response, "message")[0]["content"][0]["text"] == "Nine."
    assert items(response, "reasoning")[0]["content"][0]["text"] == "I look."


async def test_gpt_oss_writes_code_for_a_python_of_the_operator_s(tools_url: str) -> None:
    code = 'print("é")\n'
    turns = [
        f"<|channel|>analysis to=python code<|message|>{code}<|call|>",
        "<|channel|>final<|message|>Done.<|return|>",
    ]
    script = Script(turns)
    config = McpConfig(servers=(ToolServer("python", f"{tools_url}/mcp"),))
    state = state_of(script, config, output=settle_output("gpt_oss", "gpt_oss", TEMPLATE, ""))
    interpreter = {"type": "code_interpreter", "container": {"type": "auto"}}
    async with in_memory(state) as client:
        response = await client.post(RESPONSES, json={"input": "?", "tools": [interpreter], "stream": True})
    answer = check_stream(response.text, EXTENSIONS)
    called = answer["output"][1]
    assert (called["type"], called["code"], called["status"]) == ("code_interpreter_call", code, "completed")
    assert called["outputs"] == [{"type": "logs", "logs": f"ran {code!r}"}]
    reported = [frame.event for frame in frames_of(response.text) if frame.event and "code_interpreter" in frame.event]
    assert [kind.removeprefix("response.code_interpreter_call") for kind in reported] == [
        ".in_progress", "_code.delta", "_code.done", ".interpreting", ".completed"
    ]  # fmt: skip
    assert (json.loads(called["arguments"]), called["output"]) == ({"code": code}, f"ran {code!r}")


async def test_what_was_brought_and_what_a_conversation_holds_is_valid_where_it_is_listed(tools_url: str) -> None:
    script = Script([call("calc__add", a=1, b=2), "3.", "Yes."])
    asking = tool(tools_url, require_approval="always")
    async with in_memory(state_of(script, config_of(tools_url))) as client:
        conversation = (await client.post("/v1/conversations", json={})).json()["id"]
        body = {"tools": [asking], "conversation": conversation}
        first = await client.post(RESPONSES, json={**body, "input": "1 and 2?"})
        answer = {"type": "mcp_approval_response", "approve": True}
        answer["approval_request_id"] = items(first, "mcp_approval_request")[0]["id"]
        second = await client.post(RESPONSES, json={**body, "input": [answer]})
        assert items(second, "mcp_call")[0]["output"] == "3"
        held = (await client.get(f"/v1/conversations/{conversation}/items", params={"order": "asc"})).json()
        check_object(ConversationItemList, held)
        kinds = [item["type"] for item in held["data"]]
        assert kinds[:3] == ["message", "mcp_list_tools", "mcp_approval_request"]
        assert kinds[3:] == ["mcp_approval_response", "mcp_call", "message"]
        brought = {"tools": [asking], "input": [*held["data"], {"role": "user", "content": "Sure?"}]}
        third = await client.post(RESPONSES, json=brought)
        assert [item["type"] for item in third.json()["output"]] == ["message"]
        listed = await client.get(f"{RESPONSES}/{third.json()['id']}/input_items")
        check_object(ResponseItemList, listed.content)
