"""A coding agent's requests, in the shape in which Codex sends them, through the SDK to the demo model."""

from typing import Any

import openai
import pytest

TOOLS: list[Any] = [
    {
        "type": "function",
        "name": "exec_command",
        "description": "Runs a command.",
        "strict": False,
        "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]},
    },
    {
        "type": "namespace",
        "name": "crm",
        "description": "Customers.",
        "tools": [
            {
                "type": "function",
                "name": "find",
                "description": "Finds one.",
                "strict": False,
                "parameters": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
            }
        ],
    },
    {"type": "web_search", "external_web_access": False},
    {"type": "local_shell"},
]
REQUEST: dict[str, Any] = {
    "model": "demo",
    "instructions": "You are a coding agent. Call a tool.",
    "tools": TOOLS,
    "parallel_tool_calls": False,
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0197c0de-0000",
    "reasoning": {"effort": "medium", "summary": "auto"},
    "max_output_tokens": 96,
    "temperature": 0,
    "stream": True,
}


def turn(client: openai.OpenAI, items: list[Any], **fields: Any) -> Any:
    """The response that the stream ends with."""
    last: Any = None
    for event in client.responses.create(input=items, **{**REQUEST, **fields}):
        last = event
    assert last.type in ("response.completed", "response.incomplete"), last
    return last.response


@pytest.mark.proof(each="kind")
@pytest.mark.parametrize(
    ("allowed", "kind", "namespace"),
    [
        ({"type": "namespace", "name": "crm"}, "function_call", "crm"),
        ({"type": "local_shell"}, "local_shell_call", None),
    ],
)
def test_two_turns_with_the_result_of_a_tool(client: openai.OpenAI, allowed: Any, kind: str, namespace: Any) -> None:
    user = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List the files here."}]}
    choice: Any = {"type": "allowed_tools", "mode": "required", "tools": [allowed]}
    first = turn(client, [user], tool_choice=choice)
    call = first.output[-1]
    if first.status == "completed":
        assert call.type == kind
    assert first.tools[1].tools[0].name == "find"
    assert getattr(call, "namespace", None) == namespace
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "a.py b.py"}
    second = turn(client, [user, call.model_dump(exclude_none=True), output], tool_choice="auto")
    assert second.output
    assert second.usage.input_tokens > first.usage.input_tokens
