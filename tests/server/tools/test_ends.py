"""Calls of tools that are cut off: by the client, by the server's end, and what a later server makes of them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types.responses import Response

from stentor.server.api.responses import running
from stentor.server.api.responses.resuming import resume_unfinished
from stentor.server.app.state import ServerState
from stentor.server.config.config import McpConfig, StoreConfig
from stentor.server.storage.opening import opened_store
from stentor.server.tools.gateway import McpGateway
from stentor.tests.server.harness import in_memory, until
from stentor.tests.server.responses.restarting import dies, until_written
from stentor.tests.server.responses.shapes import EXTENSIONS, RESPONSES
from stentor.tests.server.responses.sockets import opened, serving, until_the_end, until_told
from stentor.tests.server.responses.steered import Held, begun, calling, steer
from stentor.tests.server.tools.scripted import Script, call, state_of
from stentor.tests.server.tools.tool_process import tool_process
from stentor.tests.wire.responses import check_stream
from stentor.tests.wire.validate import assert_same_answer, check_object, frames_of

pytestmark = pytest.mark.anyio

LONG = 30.0
"""Seconds that nothing takes, on a machine with much else to do."""
TURNS = [
    "Let me see. " + call("calc__add", a=1, b=2) + call("calc__add", a=30, b=4),
    call("calc__echo", text="héllo 😀"),
    "All of that is done.",
]


def tool(url: str, **fields: Any) -> dict[str, Any]:
    return {"type": "mcp", "server_label": "calc", "server_url": f"{url}/mcp", "require_approval": "never", **fields}


def config_of(url: str) -> McpConfig:
    return McpConfig(urls=(f"{url}/",))


def seen(url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(f"{url}/seen").json()
    return found


def slow_since(url: str, before: int) -> list[str]:
    return [one["state"] for one in seen(url)[before:] if one["tool"] == "slow"]


async def test_cancelling_a_response_cancels_the_call_that_runs(tools_url: str) -> None:
    before = len(seen(tools_url))
    script = Script(["Wait. " + call("calc__slow", seconds=60), "never"])
    async with in_memory(state_of(script, config_of(tools_url))) as client:
        begun = await client.post(RESPONSES, json={"input": "?", "tools": [tool(tools_url)], "background": True})
        url = f"{RESPONSES}/{begun.json()['id']}"
        await until(lambda: slow_since(tools_url, before) == ["begun"], LONG)
        cancelled = await client.post(f"{url}/cancel")
        check_object(Response, cancelled.content, EXTENSIONS)
        assert cancelled.json()["status"] == "cancelled"
        assert [item["status"] for item in cancelled.json()["output"][1:]] == ["completed", "incomplete"]
        await until(lambda: slow_since(tools_url, before) == ["begun", "cancelled"], LONG)
        answer = check_stream((await client.get(url, params={"stream": "true"})).text, EXTENSIONS)
        assert answer == cancelled.json()


async def test_a_client_that_goes_away_ends_the_call_that_runs(tools_url: str) -> None:
    before = len(seen(tools_url))
    script = Script([call("calc__slow", seconds=60), "never"])
    async with in_memory(state_of(script, config_of(tools_url))) as client:
        body = {"input": "?", "tools": [tool(tools_url)], "stream": True}
        task = asyncio.create_task(client.post(RESPONSES, json=body))
        await until(lambda: slow_since(tools_url, before) == ["begun"], LONG)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: slow_since(tools_url, before) == ["begun", "cancelled"], LONG)


class Restarted:
    """Servers on one store, whose model says what follows from its prompt."""

    def __init__(self, path: Path, url: str, turns: list[str]) -> None:
        self._path = path
        self._config = config_of(url)
        self._turns = turns
        self.gate = asyncio.Event()

    async def server(self, steps: int | None = None) -> ServerState:
        """One whose engine stops after some steps."""
        script = Script([])
        engine = script.engine
        engine.answer = lambda prompt, index: [*self._turns[_turn(prompt)].encode(), 257]
        engine.burst = 1 if steps is None else 7
        left = steps

        async def pace() -> None:
            nonlocal left
            await asyncio.sleep(0)
            if left is None:
                return
            left -= 1
            if left < 0:
                self.gate.set()
                await asyncio.Event().wait()

        engine.pace = pace  # type: ignore[method-assign]
        store = await opened_store(StoreConfig(self._path))
        return state_of(script, self._config, store=store)


def _turn(prompt: list[int]) -> int:
    """How many times the model has spoken before."""
    text = bytes(token for token in prompt if token < 256).decode()
    if "héllo" in text.partition("<user>")[2].partition("<assistant>")[2]:
        return 2
    return 1 if "<tool>34" in text else 0


@pytest.mark.parametrize("steps", [0, 3, 16, 25, 34, 40, 46])
async def test_wherever_it_ends_the_next_server_goes_on_without_a_gap(
    tools_url: str, tmp_path: Path, steps: int
) -> None:
    body = {"input": "?", "tools": [tool(tools_url)], "background": True}
    servers = Restarted(tmp_path / "store.db", tools_url, TURNS)
    before = len(seen(tools_url))
    first = await servers.server(steps)
    async with in_memory(first) as client:
        begun = (await client.post(RESPONSES, json=body)).json()["id"]
        await until(lambda: servers.gate.is_set() or not list(first.responses), LONG)
        await until_written(first)
        await client.get(f"{RESPONSES}/{begun}")  # behind the row of its end, if it has ended: the store works in order
    await dies(first)
    made = [one for one in seen(tools_url)[before:] if one["tool"] == "add"]
    second = await servers.server()
    await resume_unfinished(second.for_responses)
    url = f"{RESPONSES}/{begun}"
    async with in_memory(second) as client:
        text = (await client.get(url, params={"stream": "true"})).text
        answer = check_stream(text, EXTENSIONS)
        assert (await client.get(url)).json() == answer
        other = await client.post(RESPONSES, json={**body, "background": False})
    await dies(second)
    assert_same_answer(other.json(), answer, ("id", "created_at", "completed_at", "background"))
    assert [item.get("output") for item in answer["output"] if item["type"] == "mcp_call"] == ["3", "34", "héllo 😀"]
    calls = [one["tool"] for one in seen(tools_url)[before:]]
    assert calls.count("add") == 4, "those of this response, made once, and those of the other"
    assert len(made) in (0, 2)


async def test_one_that_goes_on_from_another_is_gone_on_with_from_there(tools_url: str, tmp_path: Path) -> None:
    def answer(prompt: list[int], _index: int) -> list[int]:
        text = bytes(token for token in prompt if token < 256).decode()
        said = "It is 34." if "<tool>34" in text else call("calc__add", a=30, b=4) if "second" in text else "Hello."
        return [*said.encode(), 257]

    servers = Restarted(tmp_path / "store.db", tools_url, [])
    first = await servers.server(steps=8)
    first.chat.client.answer = answer  # type: ignore[union-attr]
    async with in_memory(first) as client:
        body: dict[str, Any] = {"input": "first", "tools": [tool(tools_url)]}
        before = (await client.post(RESPONSES, json=body)).json()
        assert [item["type"] for item in before["output"]] == ["mcp_list_tools", "message"]
        body |= {"input": "second", "previous_response_id": before["id"], "background": True}
        begun = (await client.post(RESPONSES, json=body)).json()["id"]
        await until(lambda: servers.gate.is_set() or not list(first.responses), LONG)
        await until_written(first)
    await dies(first)
    second = await servers.server()
    second.chat.client.answer = answer  # type: ignore[union-attr]
    await resume_unfinished(second.for_responses)
    async with in_memory(second) as client:
        ended = check_stream((await client.get(f"{RESPONSES}/{begun}", params={"stream": "true"})).text, EXTENSIONS)
    prompts = [bytes(stream.prompt).decode() for stream in second.chat.client.streams]  # type: ignore[union-attr]
    await dies(second)
    assert [item["type"] for item in ended["output"]] == ["mcp_call", "message"]
    assert prompts
    assert all("<user>first\n<assistant>Hello.\n<user>second" in prompt for prompt in prompts)


async def test_a_call_that_may_have_had_an_effect_is_not_made_again(
    tools_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "FLUSH_SECONDS", 60.0)  # it is kept before it is made, not some time later
    turns = [call("calc__slow", seconds=60), "unused", "unused"]
    servers = Restarted(tmp_path / "store.db", tools_url, turns)
    before = len(seen(tools_url))
    first = await servers.server()
    async with in_memory(first) as client:
        body = {"input": "?", "tools": [tool(tools_url)], "background": True}
        begun = (await client.post(RESPONSES, json=body)).json()["id"]
        await until(lambda: slow_since(tools_url, before) == ["begun"], LONG)
    await dies(first)
    servers = Restarted(tmp_path / "store.db", tools_url, [turns[0]])
    second = await servers.server()
    second.chat.client.answer = lambda prompt, index: [  # type: ignore[union-attr]
        *("Not known." if b"not made again" in bytes(t for t in prompt if t < 256) else turns[0]).encode(),
        257,
    ]
    await resume_unfinished(second.for_responses)
    async with in_memory(second) as client:
        text = (await client.get(f"{RESPONSES}/{begun}", params={"stream": "true"})).text
        answer = check_stream(text, EXTENSIONS)
    await dies(second)
    called = answer["output"][1]
    assert (called["status"], called["error"]["type"]) == ("failed", "mcp_protocol_error")
    assert answer["output"][2]["content"][0]["text"] == "Not known."
    assert slow_since(tools_url, before).count("begun") == 1


async def test_a_steered_response_ends_behind_the_results_of_the_servers_own_calls(tools_url: str) -> None:
    text = call("calc__echo", text="between the lines")
    engine = Held(text=text, steps=text.index("lines"), max_model_len=1 << 16)
    state = calling(engine, gateway=McpGateway(config_of(tools_url)))
    async with serving(state) as address, opened(address) as socket:
        first = await begun(socket, engine, tools=[tool(tools_url)])
        await steer(socket, first, "Louder.")
        await until_told(socket, "response.steer.accepted")
        engine.gate.set()
        ended = (await until_the_end(socket))[-1]["response"]
        assert ended["incomplete_details"] == {"reason": "steered"}
        assert [item["type"] for item in ended["output"]] == ["mcp_list_tools", "mcp_call"]
        assert "between the lines" in ended["output"][1]["output"]
        await until_the_end(socket)
        assert engine.prompts[-1].count("between the lines") == 2  # in the call and in its result
        assert engine.prompts[-1].endswith("<user>Louder.\n<assistant>")


async def test_a_server_that_let_us_in_is_not_asked_once_the_key_is_lost(tools_url: str, tmp_path: Path) -> None:
    servers = Restarted(tmp_path / "store.db", tools_url, TURNS)
    first = await servers.server(steps=5)
    async with in_memory(first) as client:
        body = {"input": "?", "tools": [tool(tools_url, authorization="s3cret")], "background": True}
        begun = (await client.post(RESPONSES, json=body)).json()["id"]
        await until(servers.gate.is_set, LONG)
        await until_written(first)
    await dies(first)
    second = await servers.server()
    second.chat.client.answer = lambda prompt, index: [  # type: ignore[union-attr]
        *("Sorry." if b"is not kept" in bytes(t for t in prompt if t < 256) else TURNS[0]).encode(),
        257,
    ]
    await resume_unfinished(second.for_responses)
    async with in_memory(second) as client:
        answer = check_stream((await client.get(f"{RESPONSES}/{begun}", params={"stream": "true"})).text, EXTENSIONS)
    await dies(second)
    calls = [item for item in answer["output"] if item["type"] == "mcp_call"]
    assert {one["status"] for one in calls} == {"failed"}
    assert "is not kept" in calls[0]["error"]["message"]


async def test_a_server_that_says_nothing_is_given_up_in_time() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(silent, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    config = McpConfig(urls=(f"{url}/",), connect_timeout=0.4)
    async with listener, in_memory(state_of(Script([]), config)) as client, asyncio.timeout(LONG):
        response = await client.post(RESPONSES, json={"input": "?", "tools": [tool(url)]})
    assert response.status_code == 424
    assert "0.4 seconds" in response.json()["error"]["message"]


async def test_a_server_that_dies_under_a_call_fails_the_call_at_once_and_not_the_response() -> None:
    with tool_process() as (url, process):
        script = Script([call("calc__slow", seconds=60), "Gone."])
        async with in_memory(state_of(script, config_of(url))) as client, asyncio.timeout(LONG):
            asked = asyncio.create_task(client.post(RESPONSES, json={"input": "?", "tools": [tool(url)]}))
            await until(lambda: slow_since(url, 0) == ["begun"], LONG)
            process.kill()
            response = await asked
    called, message = response.json()["output"][1:]
    assert (called["status"], called["error"]["type"]) == ("failed", "mcp_protocol_error")
    assert message["content"][0]["text"] == "Gone."


async def test_events_that_were_read_stay_as_they_were(tools_url: str) -> None:
    script = Script(TURNS)
    async with in_memory(state_of(script, config_of(tools_url))) as client:
        body = {"input": "?", "tools": [tool(tools_url)], "stream": True}
        first = (await client.post(RESPONSES, json=body)).text
        answer = check_stream(first, EXTENSIONS)
        again = await client.get(f"{RESPONSES}/{answer['id']}", params={"stream": "true", "starting_after": 6})
        assert frames_of(again.text) == frames_of(first)[7:]
        items = (await client.get(f"{RESPONSES}/{answer['id']}/input_items")).json()
        assert json.dumps(items).count('"user"') == 1
