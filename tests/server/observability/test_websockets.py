"""A WebSocket is told of as every request is: one line, an id, a status, a span, and whose it was."""

import json
import logging
from typing import Any

import pytest
import websockets
from msgspec.structs import replace
from websockets.asyncio.client import connect

from stentor.server.app.state import ServerState
from stentor.server.config.config import ObserveConfig
from stentor.server.middleware.access_control import AccessControl
from stentor.server.observability.observer import Observer, log_request, open_access_log, open_observer
from stentor.server.observability.request import MOST_SERVED, EngineUsage, RequestRecord
from stentor.tests.fakes import FakeEngine, fake_state
from stentor.tests.server.harness import until
from stentor.tests.server.middleware.keyrings import keyring
from stentor.tests.server.observability.collector import Collector, attributes
from stentor.tests.server.responses.sockets import serving

pytestmark = pytest.mark.anyio

SOCKETS = ["/v1/responses", "/v1/realtime"]
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def records() -> list[RequestRecord]:
    return []


@pytest.fixture
def state(records: list[RequestRecord]) -> ServerState:
    open_access_log()
    state = fake_state(access=AccessControl(keyring("one-key", "two-key")))
    return replace(state, observer=Observer([state.metrics.ended, log_request, records.append]))


def opened(address: str, path: str, key: str = "two-key", **headers: str) -> connect:
    sent = {"authorization": f"Bearer {key}", **headers}
    return connect(f"ws://{address}{path}", compression=None, proxy=None, additional_headers=sent)


def responses(state: ServerState, status: str) -> float | None:
    labels = {"model_name": state.chat.config.served_names[0], "status": status}
    return state.metrics.registry.get_sample_value("stentor:http_responses_total", labels)


@pytest.mark.parametrize("path", SOCKETS)
async def test_an_opened_websocket_has_one_line_at_its_end_with_its_id_and_whose_it_was(
    path: str, state: ServerState, records: list[RequestRecord], caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(state) as address:
        async with opened(address, path + "?key=sesame", **{"x-request-id": "mine"}) as socket:
            assert socket.response is not None
            assert socket.response.headers["x-request-id"] == "mine"
            assert not records, "it has not ended"
        await until(lambda: records)
    (line,) = [record for record in caplog.records if record.name == "stentor.access"]
    assert line.message.startswith(f"GET {path} 101 in ")
    reported: Any = line
    assert (reported.request_id, reported.fields["status"], reported.fields["key"]) == ("mine", 101, "api-2")
    assert (records[0].route, records[0].error) == (path, "")
    assert responses(state, "101") == 1
    assert "sesame" not in caplog.text


@pytest.mark.parametrize("path", SOCKETS)
async def test_a_wrong_key_over_a_websocket_counts_as_over_http(
    path: str, state: ServerState, records: list[RequestRecord], caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(state) as address:
        with pytest.raises(websockets.InvalidStatus) as refused:
            await opened(address, path, key="wrong")
        await until(lambda: records)
    answer = refused.value.response
    assert (answer.status_code, json.loads(answer.body)["error"]["code"]) == (401, "invalid_api_key")
    assert answer.headers["x-request-id"] == records[0].request_id
    assert (records[0].status, records[0].error, records[0].key) == (401, "invalid_api_key", "")
    assert state.metrics.rejected["auth"]._value.get() == 1
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_websocket_where_there_is_none_is_404(state: ServerState, records: list[RequestRecord]) -> None:
    async with serving(state) as address:
        with pytest.raises(websockets.InvalidStatus) as refused:
            await opened(address, "/v1/models")
        await until(lambda: records)
    assert json.loads(refused.value.response.body)["error"]["code"] == "unknown_url"
    assert (records[0].status, records[0].error) == (404, "unknown_url")
    assert state.metrics.rejected["not_found"]._value.get() == 1


@pytest.mark.parametrize("path", SOCKETS)
async def test_an_error_event_names_the_request(path: str, state: ServerState) -> None:
    async with serving(state) as address, opened(address, path, **{"x-request-id": "mine"}) as socket:
        await socket.send('{"type": "no.such.event"}')
        while (event := json.loads(await socket.recv()))["type"] != "error":
            pass
        assert "mine" in (event.get("request_id"), event["error"].get("headers", {}).get("x-request-id"))


async def test_what_is_generated_over_a_websocket_is_named_and_counted(
    state: ServerState, records: list[RequestRecord]
) -> None:
    engine: Any = state.chat.client
    async with serving(state) as address:
        async with opened(address, "/v1/responses", **{"x-request-id": "mine"}) as socket:
            for _ in range(2):
                await socket.send(json.dumps({"type": "response.create", "input": "hi", "max_output_tokens": 5}))
                while not json.loads(await socket.recv())["type"].startswith(("response.inc", "response.comp")):
                    pass
        await until(lambda: records)
    assert engine.names == ["mine", "mine"]
    assert (len(records[0].served), records[0].output_tokens) == (2, 10)


def test_a_request_that_brings_prompts_for_hours_is_remembered_in_part_and_counted_whole() -> None:
    record = RequestRecord("id", "GET", "/v1/realtime")
    for _ in range(MOST_SERVED + 10):
        record.add(EngineUsage(3, 4, 1, 0.0, output_tokens=2))
    assert len(record.served) == MOST_SERVED
    assert (record.prompt_tokens, record.output_tokens) == (3 * (MOST_SERVED + 10), 2 * (MOST_SERVED + 10))


async def test_a_websocket_is_a_span_of_the_trace_that_its_client_is_in(collector: Collector) -> None:
    state = fake_state(FakeEngine())
    observer = open_observer(ObserveConfig(otlp_endpoint=collector.url), state.metrics, "fake/model")
    state = replace(state, observer=observer)
    async with serving(state) as address:
        trace = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
        async with opened(address, "/v1/responses", **trace) as socket:
            await socket.send(json.dumps({"type": "response.create", "input": "hi", "max_output_tokens": 5}))
            while json.loads(await socket.recv())["type"] != "response.incomplete":
                pass
    state.observer.close()
    (root,) = collector.roots()
    assert (root.name, root.trace_id.hex()) == ("GET /v1/responses", TRACE)
    assert attributes(root)["http.response.status_code"] == 101
