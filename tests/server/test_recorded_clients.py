"""Requests as clients from npm have sent them, recorded in front of the server: each is served, whole or streamed.

Their long texts are cut, and of the agents' tools some are kept.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stentor.server.config.model_registry import ModelRegistry, ServedModel
from stentor.server.parsing.output import TOOL_FORMATS, OutputFormat
from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.harness import in_memory
from stentor.tests.server.responses.shapes import EXTENSIONS
from stentor.tests.wire import chat, messages, responses

pytestmark = pytest.mark.anyio

RECORDED = [json.loads(line) for line in (Path(__file__).parent / "recorded_requests.jsonl").read_text().splitlines()]
ANSWER = "The file says so."
ARGUMENTS = {"city": "Paris"}


def described(recorded: dict[str, Any]) -> str:
    body = recorded["body"]
    also = [name for name in ("stream", "tools", "response_format", "format", "output_config") if body.get(name)]
    return f"{recorded['client']} {recorded['path']} {' '.join(also)}"


def first_tool(body: dict[str, Any]) -> str | None:
    """The name of the first function that the model is offered."""
    for tool in body.get("tools") or ():
        if name := tool.get("function", tool).get("name"):
            return str(name)
    return None


def texts(value: Any) -> Iterator[str]:
    """Every string of an answer, but for roles, which Ollama repeats in each piece."""
    if isinstance(value, str):
        yield value
    inside = [inner for name, inner in value.items() if name != "role"] if isinstance(value, dict) else value
    for inner in inside if isinstance(inside, list) else ():
        yield from texts(inner)


def answer_of(recorded: dict[str, Any], response: httpx.Response) -> Any:
    """What a client makes of the answer; the streams are held to their order."""
    path = recorded["path"].partition("?")[0]
    if "event-stream" in response.headers["content-type"]:
        if path == "/v1/messages":
            return messages.check_stream(response.content)
        if path == "/v1/responses":
            return responses.check_stream(response.content, EXTENSIONS)
        if path == "/v1/chat/completions":
            usage = recorded["body"].get("stream_options", {}).get("include_usage", False)
            return chat.check_stream(response.content, usage=usage)
        return [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    return [line.get("message", line.get("response", line)) for line in map(json.loads, response.text.splitlines())]


def lengthened(body: dict[str, Any]) -> dict[str, Any]:
    """With room for the answer: a token of this engine is a byte."""
    limits: dict[str, Any] = {name: 4000 for name in ("max_tokens", "max_output_tokens") if name in body}
    options = {"options": {**body["options"], "num_predict": 4000}} if "options" in body else {}
    return {**body, **limits, **options}


@pytest.mark.parametrize("client_name", sorted({recorded["client"].split()[0] for recorded in RECORDED}))
async def test_what_a_client_sends_is_served(client_name: str) -> None:
    engine = FakeEngine(max_model_len=200_000)
    engine.burst = 16
    state = fake_state(
        engine,
        served_names=("fake",),
        registry=ModelRegistry([ServedModel("chat", ("fake",), patterns=("*",))]),
        output=OutputFormat(tools=TOOL_FORMATS["hermes"]),
    )
    async with in_memory(state) as client:
        for recorded in RECORDED:
            if recorded["client"].split()[0] != client_name:
                continue
            tool = first_tool(recorded["body"])
            call = json.dumps({"name": tool, "arguments": ARGUMENTS})
            engine.answer = says(ANSWER if tool is None else f"<tool_call>\n{call}\n</tool_call>")
            response = await client.post(recorded["path"], json=lengthened(recorded["body"]))
            assert response.status_code == 200, (described(recorded), response.text)
            if recorded["path"].endswith("_tokens"):  # counts alone
                continue
            said = "".join(texts(answer_of(recorded, response)))
            assert (ANSWER if tool is None else tool) in said, (described(recorded), said)
