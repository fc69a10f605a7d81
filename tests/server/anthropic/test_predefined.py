"""Tools whose type says what they take: offered with Anthropic's own names, and called by them."""

import json
from typing import Any, get_args, get_type_hints

import pytest
from anthropic.types import Message
from anthropic.types.beta.beta_tool_union_param import BetaToolUnionParam
from anthropic.types.tool_union_param import ToolUnionParam

from stentor.protocols.anthropic.predefined import PREDEFINED
from stentor.protocols.anthropic.request import messages_decoder
from stentor.protocols.common.decoding import decode
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.common.limits import Limits
from stentor.protocols.openai.tools import tool_use
from stentor.server.api.anthropic.translate import chat_request
from stentor.server.config.config import McpConfig
from stentor.tests.server.harness import HELLO, in_memory
from stentor.tests.server.tools.scripted import Script, call, state_of
from stentor.tests.wire.messages import check_stream
from stentor.tests.wire.validate import assert_same_answer, check_object

pytestmark = pytest.mark.anyio

BASH: Any = {"type": "bash_20250124", "name": "bash"}
EDITOR: Any = {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 10_000}
BODY: dict[str, Any] = {"model": "fake", "max_tokens": 500, "messages": HELLO}


def offered(*tools: dict[str, Any]) -> list[Any]:
    request = decode(messages_decoder, json.dumps({**BODY, "tools": tools}).encode(), Limits())
    request.check_conversation()
    return list(tool_use(chat_request(request), Limits()).tools)


def described_by_the_sdk() -> dict[str, str]:
    """Names by type, of all tools that clients run and whose schema only Anthropic knows."""
    found = {}
    for member in (*get_args(ToolUnionParam), *get_args(BetaToolUnionParam)):
        hints = get_type_hints(member)
        kinds = get_args(hints["type"]) if "type" in hints else ()
        for kind in kinds:
            if isinstance(kind, str) and kind.startswith(("bash_", "text_editor_", "memory_")):
                found[kind] = get_args(hints["name"])[0]
    return found


def test_every_version_that_the_sdk_knows_is_known_by_its_name() -> None:
    assert {kind: tool.name for kind, tool in PREDEFINED.items()} == described_by_the_sdk()


@pytest.mark.parametrize("kind", PREDEFINED)
def test_each_is_offered_as_a_function_that_is_held_to_its_schema(kind: str) -> None:
    (tool,) = offered({"type": kind, "name": PREDEFINED[kind].name, "cache_control": {"type": "ephemeral"}})
    assert (tool.name, tool.strict) == (PREDEFINED[kind].name, True)
    assert tool.description
    assert "command" in tool.parameters["properties"]


@pytest.mark.parametrize(
    ("tool", "param", "said"),
    [
        ({"type": "bash_20250124", "name": "shell"}, "tools[0].name", "`bash`"),
        ({"type": "web_search_20250305", "name": "web_search"}, "tools[0].type", "`web_search` of type `web_search_2"),
        ({"type": "code_execution_20250825", "name": "code_execution"}, "tools[0].type", "code_execution"),
        ({"type": "web_fetch_20250910", "name": "web_fetch"}, "tools[0].type", "web_fetch"),
        ({"type": "computer_20250124", "name": "computer"}, "tools[0].type", "computer"),
        ({"type": "bash_19990101", "name": "bash"}, "tools[0].type", "bash"),
    ],
)
def test_a_tool_that_nobody_here_can_run_or_describe_is_refused_by_its_name(
    tool: dict[str, Any], param: str, said: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        offered(tool)
    assert refused.value.param == param
    assert said in refused.value.message


async def test_calls_come_back_as_uses_of_the_tool_and_their_results_are_told() -> None:
    calls = call("bash", command="ls") + call("str_replace_based_edit_tool", command="view", path="/a.py")
    script = Script([calls, calls, "Done."])
    async with in_memory(state_of(script, McpConfig())) as client:
        body = {**BODY, "tools": [BASH, EDITOR]}
        whole = await client.post("/v1/messages", json=body)
        streamed = await client.post("/v1/messages", json={**body, "stream": True})
        message = check_object(Message, whole.content)
        assert_same_answer(whole.json(), check_stream(streamed.text), ("id",))
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "a.py"} for block in whole.json()["content"]
        ]
        later = [
            *HELLO,
            {"role": "assistant", "content": whole.json()["content"]},
            {"role": "user", "content": results},
        ]
        answer = await client.post("/v1/messages", json={**body, "messages": later})
    assert [(block.type, block.name, block.input) for block in message.content if block.type == "tool_use"] == [
        ("tool_use", "bash", {"command": "ls"}),
        ("tool_use", "str_replace_based_edit_tool", {"command": "view", "path": "/a.py"}),
    ]
    assert message.stop_reason == "tool_use"
    assert answer.json()["content"][0]["text"] == "Done."
    assert script.prompts[2].count("<tool>a.py") == 2
