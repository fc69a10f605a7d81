"""A client names the engine of its request, or its session (`X-data-parallel-rank`, `X-Session-ID`)."""

import json
from typing import Any, cast

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from stentor.engine.client.client import EngineClient
from stentor.engine.client.replicas import EngineReplicas
from stentor.protocols.common.errors import BadRequest
from stentor.server.overload.request_context import engine_choice_of
from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.harness import CHAT, COMPLETIONS, HELLO, in_memory, on_loopback
from stentor.tests.server.responses.sockets import serving

pytestmark = pytest.mark.anyio

RESPONSES = "/v1/responses"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO},
    COMPLETIONS: {"prompt": "hello"},
    RESPONSES: {"input": "hello"},
}


class _Engine(FakeEngine):
    @property
    def live_requests(self) -> int:
        return self.live


async def _ask(client: httpx.AsyncClient, path: str, headers: dict[str, str]) -> httpx.Response:
    return await client.post(path, json={"model": "fake", **BODIES[path]}, headers=headers)


@pytest.mark.parametrize("path", BODIES)
async def test_requests_go_to_the_engine_that_they_name_and_those_of_a_session_to_the_same(path: str) -> None:
    engines = [_Engine() for _ in range(3)]
    state = fake_state(cast(Any, EngineReplicas(cast("list[EngineClient]", engines))))
    async with on_loopback(state) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        for number in (2, 2, 0):
            answer = await _ask(client, path, {"X-data-parallel-rank": str(number)})
            assert answer.status_code == 200
        assert [len(engine.streams) for engine in engines] == [1, 0, 2]
        for headers in ({"X-Session-ID": "one", "X-data-parallel-rank": "1"}, *[{"X-Session-ID": "one"}] * 4):
            assert (await _ask(client, path, headers)).status_code == 200
        assert [len(engine.streams) for engine in engines] == [1, 5, 2]
        for header in ("one", "other"):
            named = {"model": "fake", **BODIES[path], "session_id": "one"}
            assert (await client.post(path, json=named, headers={"X-Session-ID": header})).status_code == 200
        assert [len(engine.streams) for engine in engines] == [1, 7, 2], "the body's session counts"
        for _ in range(3):
            await _ask(client, path, {})
        assert [len(engine.streams) for engine in engines] == [2, 8, 3], "others take turns"
        for wrong in ("3", "-1", "two", "", "1" * 5000):
            refused = await _ask(client, path, {"X-data-parallel-rank": wrong})
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "x-data-parallel-rank"
            assert "an integer from 0 to 2" in refused.json()["error"]["message"]


async def test_where_one_engine_runs_the_model_it_is_number_0_and_there_is_no_other() -> None:
    async with in_memory(fake_state()) as client:
        assert (await _ask(client, CHAT, {"X-data-parallel-rank": "0", "X-Session-ID": "one"})).status_code == 200
        assert (await _ask(client, CHAT, {"X-data-parallel-rank": "1"})).status_code == 400


@pytest.mark.parametrize("path", [RESPONSES, "/v1/realtime"])
async def test_what_a_websocket_asks_of_goes_to_the_engine_that_its_handshake_names(path: str) -> None:
    engines = [_Engine(answer=says("hello")) for _ in range(3)]
    state = fake_state(cast(Any, EngineReplicas(cast("list[EngineClient]", engines))))
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
    asked: list[dict[str, Any]] = [{"type": "response.create", "input": "hello"}]
    if path != RESPONSES:
        asked = [{"type": "conversation.item.create", "item": item}, {"type": "response.create"}]
    async with serving(state) as host:
        address = f"ws://{host}{path}"
        session = {"X-Session-ID": "one"}
        for headers in ({"X-data-parallel-rank": "2"}, {**session, "X-data-parallel-rank": "1"}, session):
            async with connect(address, additional_headers=headers) as socket:
                for message in asked:
                    await socket.send(json.dumps(message))
                while json.loads(await socket.recv())["type"] not in ("response.completed", "response.done"):
                    pass
        assert [len(engine.streams) for engine in engines] == [0, 2, 1]
        with pytest.raises(InvalidStatus) as refused:
            async with connect(address, additional_headers={"X-data-parallel-rank": "3"}):
                pass
        assert refused.value.response.status_code == 400


@pytest.mark.parametrize("header", ["x-data-parallel-rank", "x-session-id"])
def test_a_header_that_is_repeated_is_refused_by_name(header: str) -> None:
    with pytest.raises(BadRequest, match="must be given once") as refused:
        engine_choice_of([(header.encode(), b"0"), (header.encode(), b"0")], 2)
    assert refused.value.param == header
