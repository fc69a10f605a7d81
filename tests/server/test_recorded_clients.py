"""Requests as clients from PyPI and npm have sent them, recorded in front of the server: each is served, whole or
streamed, in the shape that the types of the SDKs declare.

Their long texts are cut, and of the agents' tools some are kept. A line is a POST where it names no ``method``, and has
those of its ``headers`` that the server reads.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic.types
import httpx
import ollama
import openai.types.chat
import openai.types.responses
import pydantic
import pytest
from anthropic.types.beta import BetaRawMessageStreamEvent
from msgspec.structs import replace

from stentor.engine.model_config.towers.media_spec import MediaSpec
from stentor.server.app.state import ServerState
from stentor.server.config.media import MediaConfig
from stentor.server.config.model_registry import ModelRegistry, ServedModel
from stentor.server.media.collect import Accepted
from stentor.server.parsing.output import TOOL_FORMATS, OutputFormat
from stentor.server.text.renderers.choose import TemplateRenderer
from stentor.server.text.renderers.interface import RenderRequest
from stentor.tests.fakes import FakeEngine, byte_pool, fake_state, says
from stentor.tests.server.harness import in_memory
from stentor.tests.server.pooling.pooler import NAME, FakePooler, config, model_of
from stentor.tests.server.responses.shapes import EXTENSIONS
from stentor.tests.wire import chat, messages, responses
from stentor.tests.wire.validate import CHAT_EXTENSIONS, COMPLETION_EXTENSIONS, NONE, Extensions, check_object

pytestmark = pytest.mark.anyio

RECORDED = [json.loads(line) for line in (Path(__file__).parent / "recorded_requests.jsonl").read_text().splitlines()]
ANSWER = "The file says so."
ARGUMENTS = {"city": "Paris"}
SHAPES: dict[str, tuple[type[pydantic.BaseModel], Extensions]] = {
    "/v1/chat/completions": (openai.types.chat.ChatCompletion, CHAT_EXTENSIONS),
    "/v1/completions": (openai.types.Completion, COMPLETION_EXTENSIONS),
    "/v1/responses": (openai.types.responses.Response, EXTENSIONS),
    "/v1/messages": (anthropic.types.Message, NONE),
    "/api/chat": (ollama.ChatResponse, NONE),
    "/api/generate": (ollama.GenerateResponse, NONE),
}
"""Of an answer that is whole, and of each line of Ollama's."""
FIELDS = {
    "/api/embed": "embeddings",
    "/api/show": "capabilities",
    "/v1/models": "data",
    "/v1/messages/count_tokens": "input_tokens",
    "/v1/responses/input_tokens": "input_tokens",
}
"""Of the answers of endpoints that generate no text."""


SEES = Accepted.of(MediaSpec({"image": 5}), MediaConfig())


class TextsAlone(TemplateRenderer):
    """Of a template that has no place for pictures, and counts them."""

    pictures = 0

    async def render(self, request: RenderRequest) -> list[int]:
        kept = []
        for message in request.messages:
            content = message.get("content")
            if isinstance(content, list):
                texts = [part for part in content if part != {"type": "image"}]
                self.pictures += len(content) - len(texts)
                message = {**message, "content": texts}
            kept.append(message)
        return await super().render(replace(request, messages=kept))


def described(recorded: dict[str, Any]) -> str:
    body = recorded.get("body") or {}
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
        if path == "/v1/messages":  # Claude Code's is that of the beta
            return messages.check_stream(response.content, event=BetaRawMessageStreamEvent)
        if path == "/v1/responses":
            return responses.check_stream(response.content, EXTENSIONS)
        if path == "/v1/chat/completions":
            usage = recorded["body"].get("stream_options", {}).get("include_usage", False)
            return chat.check_stream(response.content, usage=usage)
        pieces = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
        return ["".join(choice["text"] for piece in pieces for choice in piece["choices"])]  # completions
    shape, extensions = SHAPES[path]
    lines = response.text.splitlines()
    for line in lines:
        check_object(shape, line, extensions)
    return [line.get("message", line.get("response", line)) for line in map(json.loads, lines)]


def lengthened(body: dict[str, Any]) -> dict[str, Any]:
    """With room for the answer: a token of this engine is a byte."""
    limits: dict[str, Any] = {name: 4000 for name in ("max_tokens", "max_output_tokens") if name in body}
    options = {"options": {**body["options"], "num_predict": 4000}} if "options" in body else {}
    return {**body, **limits, **options}


def state_with(engine: FakeEngine, renderer: TextsAlone) -> ServerState:
    """A server that takes any name for its chat model, which sees, and names of OpenAI's for its embedding model."""
    embedder = model_of(FakePooler(), config())
    embeds = ServedModel("embedding", (NAME,), patterns=("text-embedding-*",))
    state = fake_state(
        engine,
        renderer=renderer,
        served_names=("fake",),
        registry=ModelRegistry([ServedModel("chat", ("fake",), patterns=("*",)), embeds]),
        output=OutputFormat(tools=TOOL_FORMATS["hermes"]),
        embedding=embedder,
        runners={"embedding": embedder.client},
    )
    return replace(state, chat=replace(state.chat, accepted=SEES))


@pytest.mark.parametrize("client_name", sorted({recorded["client"].split()[0] for recorded in RECORDED}))
async def test_what_a_client_sends_is_served(client_name: str) -> None:
    engine = FakeEngine(max_model_len=200_000)
    engine.burst = 16
    renderer = TextsAlone(byte_pool())
    async with in_memory(state_with(engine, renderer)) as client:
        for recorded in RECORDED:
            if recorded["client"].split()[0] != client_name:
                continue
            body = recorded.get("body")
            shown = renderer.pictures
            tool = first_tool(body or {})
            call = json.dumps({"name": tool, "arguments": ARGUMENTS})
            engine.answer = says(ANSWER if tool is None else f"<tool_call>\n{call}\n</tool_call>")
            response = await client.request(
                recorded.get("method", "POST"),
                recorded["path"],
                json=body and lengthened(body),
                headers=recorded.get("headers"),
            )
            assert response.status_code == 200, (described(recorded), response.text)
            assert renderer.pictures - shown == json.dumps(body).count("image/png"), described(recorded)
            path = recorded["path"].partition("?")[0]
            if path in FIELDS:
                assert FIELDS[path] in response.json(), described(recorded)
            elif path == "/v1/embeddings":
                texts_of = [body["input"]] if isinstance(body["input"], str) else body["input"]
                assert [each["index"] for each in response.json()["data"]] == [*range(len(texts_of))]
            elif path != "/":  # which is asked with HEAD, to see that a server is there
                said = "".join(texts(answer_of(recorded, response)))
                assert (ANSWER if tool is None else tool) in said, (described(recorded), said)
