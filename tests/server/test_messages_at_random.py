"""Requests as Claude Code makes them, at random: the well-formed are served, and of others the field is named."""

import asyncio
import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import anthropic.types
import httpx
import pytest
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from stentor.tests.examples import examples
from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.harness import in_memory
from stentor.tests.server.schemas import JSON_VALUES, TEXTS
from stentor.tests.wire.messages import check_stream
from stentor.tests.wire.validate import assert_same_answer, check_object

HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,fine-grained-tool-streaming-2025-05-14",
    "x-api-key": "sk-unused",
    "x-app": "cli",
}
CACHED = {"cache_control": {"type": "ephemeral"}}
NAMES = ("Bash", "Read", "Edit", "mcp__server__do_it")
PATH = "/v1/messages?beta=true"


class Target:
    """The app on a loop of its own."""

    def __init__(self, runner: asyncio.Runner, client: httpx.AsyncClient) -> None:
        self._runner = runner
        self._client = client

    def post(self, body: dict[str, Any]) -> httpx.Response:
        return self._runner.run(self._client.post(PATH, json=body, headers=HEADERS))


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    engine = FakeEngine(max_model_len=1 << 20, answer=says("Done."))
    engine.burst = 3

    async def made() -> httpx.AsyncClient:
        return in_memory(fake_state(engine))

    with asyncio.Runner() as runner:
        client = runner.run(made())
        yield Target(runner, client)
        runner.run(client.aclose())


def tool(name: str) -> dict[str, Any]:
    properties = {"command": {"type": "string", "description": "What to do"}, "timeout": {"type": "number"}}
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": properties,
        "required": ["command"],
        "additionalProperties": False,
    }
    return {"name": name, "description": "Does it. " * 20, "input_schema": schema}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


cached = st.sampled_from([{}, CACHED, {"cache_control": {"type": "ephemeral", "ttl": "1h"}}])
text_blocks = st.builds(lambda said, more: text(said, **more), TEXTS, cached)
inputs = st.dictionaries(TEXTS, JSON_VALUES, max_size=3)


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    calls = 0
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.integers(0, 5)) == 0:
            messages.append({"role": "system", "content": draw(TEXTS | st.lists(text_blocks, max_size=2))})
        messages.append({"role": "user", "content": draw(TEXTS | st.lists(text_blocks, min_size=1, max_size=3))})
        if not draw(st.booleans()):
            continue
        said: list[dict[str, Any]] = []
        if draw(st.booleans()):
            said.append({"type": "thinking", "thinking": draw(TEXTS), "signature": draw(TEXTS)})
        if draw(st.integers(0, 4)) == 0:
            said.append({"type": "redacted_thinking", "data": draw(TEXTS)})
        said += draw(st.lists(text_blocks, max_size=2))
        results = []
        for _ in range(draw(st.integers(0, 3))):
            calls += 1
            said.append(
                {
                    "type": "tool_use",
                    "id": f"toolu_{calls}",
                    "name": draw(st.sampled_from(NAMES)),
                    "input": draw(inputs),
                    **draw(cached),
                }
            )
            content = draw(TEXTS | st.lists(text_blocks, max_size=2) | st.just("x" * 20000))
            result = {"type": "tool_result", "tool_use_id": f"toolu_{calls}", "content": content, **draw(cached)}
            results.append(result | draw(st.sampled_from([{}, {"is_error": True}, {"is_error": False}])))
        messages.append({"role": "assistant", "content": said})
        if results:
            messages.append({"role": "user", "content": [*results, *draw(st.lists(text_blocks, max_size=1))]})
    return messages


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": "fake",
        "max_tokens": draw(st.sampled_from([0, 1, 16, 32000])),
        "messages": draw(conversations()),
        "metadata": {"user_id": "user_0123_account__session_4567"},
    }
    optional: dict[str, st.SearchStrategy[Any]] = {
        "system": TEXTS | st.lists(text_blocks, max_size=3),
        "tools": st.integers(0, 40).map(lambda count: [tool(f"{NAMES[0]}_{place}") for place in range(count)]),
        "temperature": st.sampled_from([0, 0.5, 1]),
        "thinking": st.sampled_from(
            [
                {"type": "enabled", "budget_tokens": 31999},
                {"type": "adaptive", "display": "omitted"},
                {"type": "adaptive"},
                {"type": "disabled"},
            ]
        ),
        "stop_sequences": st.sampled_from([[], ["\n\nHuman:"]]),
        "output_config": st.sampled_from([{}, {"effort": "high"}, {"effort": "max"}]),
        "context_management": st.just({"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
        "service_tier": st.sampled_from(["auto", "standard_only"]),
    }
    for name in draw(st.lists(st.sampled_from(sorted(optional)), unique=True)):
        body[name] = draw(optional[name])
    return body


@settings(max_examples=examples(30, 300), deadline=None, suppress_health_check=list(HealthCheck))
@given(body=bodies())
def test_a_well_formed_request_is_served_and_streamed_the_same(target: Target, body: dict[str, Any]) -> None:
    response = target.post(body)
    assert response.status_code == 200, response.text
    check_object(BetaMessage, response.content)
    streamed = target.post(body | {"stream": True})
    assert_same_answer(
        response.json(), check_stream(streamed.content, event=BetaRawMessageStreamEvent), ("id", "signature")
    )


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of everything within."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        if path[:1] != ("tools",):
            yield from places(inner, (*path, key))


@settings(max_examples=examples(60, 600), deadline=None, suppress_health_check=list(HealthCheck))
@given(body=bodies(), data=st.data())
def test_a_request_with_something_wrong_is_served_or_refused_by_the_field_s_name(
    target: Target, body: dict[str, Any], data: st.DataObject
) -> None:
    broken = copy.deepcopy(body)
    path = data.draw(st.sampled_from(list(places(broken))))
    holder: Any = broken
    for key in path[:-1]:
        holder = holder[key]
    if data.draw(st.booleans()):
        del holder[path[-1]]
    else:
        holder[path[-1]] = data.draw(JSON_VALUES)
    response = target.post(broken)
    event(f"{response.status_code}")
    if response.status_code == 200:
        return
    assert 400 <= response.status_code < 500, response.text
    error = check_object(anthropic.types.ErrorResponse, response.content).error
    named = re.search(r"`([a-z_]+)", error.message)
    assert named is not None, error.message
    assert named[1] in ("model", "max_tokens", path[0], "messages", "tool_choice"), (path, error.message)


def test_a_request_of_claude_code_s_size_is_served(target: Target) -> None:
    """40 tools, a long system prompt in blocks, and many turns of calls."""
    turns: list[dict[str, Any]] = []
    for turn in range(60):
        use = {"type": "tool_use", "id": f"toolu_{turn}", "name": "Bash_1", "input": {"command": "ls -la"}}
        thought = {"type": "thinking", "thinking": "I look. " * 50, "signature": "c2lnbmF0dXJl"}
        turns.append({"role": "assistant", "content": [thought, text("I look."), use]})
        result = {"type": "tool_result", "tool_use_id": f"toolu_{turn}", "content": [text("a line\n" * 200)]}
        turns.append({"role": "user", "content": [result, text("<system-reminder>Go on.</system-reminder>", **CACHED)]})
    body = {
        "model": "fake",
        "max_tokens": 32000,
        "stream": True,
        "thinking": {"type": "enabled", "budget_tokens": 31999},
        "system": [text("You are Claude Code.", **CACHED), text("Be careful. " * 3000, **CACHED)],
        "tools": [tool(f"Bash_{place}") for place in range(40)],
        "messages": [{"role": "user", "content": [text("<system-reminder>x</system-reminder>"), text("Hi")]}, *turns],
        "metadata": {"user_id": json.dumps({"device_id": "x"})},
    }
    message = check_stream(target.post(body).content, event=BetaRawMessageStreamEvent)
    assert message["content"] == [{"type": "text", "text": "Done."}]
    assert message["usage"]["input_tokens"] > 100_000


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "GET", "PUT"])
@pytest.mark.parametrize("path", ["/", "/v1/messages", "/api/event_logging/batch"])
def test_whatever_else_it_asks_is_refused_quietly(target: Target, method: str, path: str) -> None:
    response = target._runner.run(target._client.request(method, path))
    served = path == "/" and method in ("GET", "HEAD")  # the page
    assert response.status_code in ((200,) if served else (404, 405))
