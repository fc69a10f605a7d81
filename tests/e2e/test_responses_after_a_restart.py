"""The whole server is killed under a background response, and another one on the same store completes it."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.e2e.made_up import EXACT, describe_talker
from stentor.tests.e2e.processes import eventually
from stentor.tests.server.responses.shapes import EXTENSIONS, RESPONSES
from stentor.tests.wire.responses import check_stream
from stentor.tests.wire.validate import frames_of

BODY: dict[str, Any] = {
    "input": "Tell me a long story about the sea.",
    "background": True,
    "max_output_tokens": 60,
    "ignore_eos": True,
    "temperature": 0.9,
    "seed": 11,
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 1,
}


@pytest.fixture
def arguments(demo_model: object, tmp_path: Path) -> list[str]:
    return [*describe_talker(tmp_path), *EXACT, "--store", str(tmp_path / "store.db")]


def _client(server: ServerProcess) -> httpx.Client:
    return httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=60)


def _read_some(client: httpx.Client, response: str, count: int) -> list[dict[str, Any]]:
    """Asks again while the server has not come to the response yet, as SDKs do."""
    events: list[dict[str, Any]] = []
    url = f"{RESPONSES}/{response}"

    def status() -> int:
        with client.stream("GET", url, params={"stream": "true"}) as stream:
            return stream.status_code

    eventually(lambda: status() != 503, 60, "the response goes on")
    with client.stream("GET", url, params={"stream": "true"}) as stream:
        assert stream.status_code == 200, stream.read()
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                events.append(json.loads(line[6:]))
            if len(events) >= count:
                break
    return events


@pytest.mark.proof  # within one process: tests/server/responses/test_resuming.py
def test_a_response_outlives_two_servers_and_nobody_can_tell(arguments: list[str]) -> None:
    with ServerProcess(arguments) as first:
        with _client(first) as client:
            undisturbed = client.post(RESPONSES, json={**BODY, "background": False}).json()
            begun = client.post(RESPONSES, json=BODY).json()["id"]
            seen = _read_some(client, begun, 15)
        os.kill(first.pid, signal.SIGKILL)
        first.wait(60)
    with ServerProcess(arguments) as second:
        with _client(second) as client:
            more = _read_some(client, begun, 40)
            assert more[:15] == seen
        os.kill(second.pid, signal.SIGKILL)
        second.wait(60)
    with ServerProcess(arguments) as third, _client(third) as client:
        url = f"{RESPONSES}/{begun}"
        eventually(lambda: client.get(url).json()["status"] == "incomplete", 60, "the response has ended")
        text = client.get(url, params={"stream": "true"}).text
        answer = check_stream(text, EXTENSIONS)
        assert client.get(url).json() == answer
        assert [json.loads(frame.data) for frame in frames_of(text)[: len(more)]] == more
    assert answer["output"][0]["content"][0] == undisturbed["output"][0]["content"][0]
    assert answer["usage"]["output_tokens"] == 60
