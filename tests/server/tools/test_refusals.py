"""Servers that may not be reached, or do not answer as they should: refused, or told, and never followed elsewhere."""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import httpx2
import pytest
from openai.types.responses import Response

from stentor.server.config.config import McpConfig
from stentor.server.media.refusal import Refusal
from stentor.server.tools import gateway
from stentor.server.tools.gateway import McpGateway
from stentor.server.tools.transport import PinnedTransport
from stentor.server.tools.url_allowlist import UrlAllowlist, check_prefix
from stentor.tests.server.harness import in_memory
from stentor.tests.server.responses.shapes import EXTENSIONS, RESPONSES
from stentor.tests.server.tools.scripted import Script, state_of
from stentor.tests.wire.responses import check_stream
from stentor.tests.wire.validate import check_object

pytestmark = pytest.mark.anyio

NAMES = {
    "mcp.example.com": ["93.184.216.34"],
    "both.example.com": ["93.184.216.34", "10.0.0.7"],
    "inside.example.com": ["10.0.0.7"],
    "metadata.example.com": ["169.254.169.254"],
}


async def resolve(host: str, _port: int) -> Sequence[str]:
    if host not in NAMES:
        raise OSError
    return NAMES[host]


def reach(*prefixes: str, private: bool = False) -> UrlAllowlist:
    return UrlAllowlist([check_prefix(prefix) for prefix in prefixes], allow_private=private, resolve=resolve)


@pytest.mark.parametrize(
    "url",
    [
        "https://mcp.example.com/",
        "https://mcp.example.com/mcp",
        "https://MCP.example.com:443/mcp?x=1",
    ],
)
async def test_what_is_opened_is_reached_at_the_address_that_was_checked(url: str) -> None:
    for opened in ("https://mcp.example.com/", "https://"):
        place = await reach(opened).place(url)
        assert [str(address) for address in place.addresses or ()] == NAMES["mcp.example.com"]


@pytest.mark.parametrize(
    "url",
    [
        "http://mcp.example.com/v1",
        "https://mcp.example.com:8443/v1",
        "https://mcp.example.com/v2",
        "https://mcp.example.com/v1x",
        "https://mcp.example.com/v1/../admin",
        "https://mcp.example.com/v1/%2e%2E/admin",
        "https://mcp.example.com.evil.com/v1",
        "https://mcp.example.com@evil.com/v1",
        "https://evil.com/#https://mcp.example.com/v1",
        "https://mcp.example.com\\@evil.com/v1",
        "https://evil.com/v1",
        "file:///etc/passwd",
        "//mcp.example.com/v1",
        "https://both.example.com/v1",
        "https://inside.example.com/v1",
        "https://metadata.example.com/v1",
        "https://none.example.com/v1",
        "https://10.0.0.7/v1",
        "https://[::1]/v1",
        "https://[::ffff:127.0.0.1]/v1",
        "https://2130706433/v1",
        "https://169.254.169.254/v1",
    ],
)
async def test_a_url_that_is_not_allowed_is_not_called(url: str) -> None:
    hosts = ("both", "inside", "metadata", "none")
    named = reach("https://mcp.example.com/v1", *(f"https://{host}.example.com/v1" for host in hosts))
    with pytest.raises(Refusal):
        await named.place(url)
    with pytest.raises(Refusal):
        await reach().place(url)


async def test_any_public_host_is_https_on_its_own_port() -> None:
    anywhere = reach("https://")
    assert (await anywhere.place("https://mcp.example.com/x")).addresses
    for url in (
        "http://mcp.example.com/",
        "https://mcp.example.com:22/",
        "https://inside.example.com/",
        "https://127.0.0.1/",
    ):
        with pytest.raises(Refusal):
            await anywhere.place(url)


async def test_private_addresses_are_reached_where_the_operator_says_so_and_metadata_never() -> None:
    opened = ("https://inside.example.com/", "https://metadata.example.com/")
    assert (await reach(*opened, private=True).place("https://inside.example.com/")).addresses
    with pytest.raises(Refusal):
        await reach(*opened, private=True).place("https://metadata.example.com/")
    assert (await reach("http://127.0.0.1:9000/").place("http://127.0.0.1:9000/mcp")).addresses
    with pytest.raises(Refusal):
        await reach("http://169.254.169.254/").place("http://169.254.169.254/latest")


def tool(url: str, **fields: Any) -> dict[str, Any]:
    return {"type": "mcp", "server_label": "calc", "server_url": url, "require_approval": "never", **fields}


async def ask(config: McpConfig, *tools: dict[str, Any], **body: Any) -> Any:
    script = Script(["Hi."])
    async with in_memory(state_of(script, config, gateway=McpGateway(config, resolve=resolve))) as client:
        response = await client.post(RESPONSES, json={"input": "Hi", "tools": list(tools), **body})
    return response


async def test_no_server_is_reached_by_its_url_unless_one_is_opened() -> None:
    response = await ask(McpConfig(), tool("https://mcp.example.com/"))
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, "tools[0].server_url", "tool_server_refused")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"connector_id": "connector_gmail"}, "connector_id"),
        ({"tunnel_id": "t"}, "tunnel_id"),
        ({"server_label": None}, "server_label"),
        ({"server_label": "a b"}, "server_label"),
        ({"server_label": "x" * 65}, "server_label"),
        ({"server_url": 5}, "server_url"),
        ({"server_url": None}, "server_url"),
        ({"headers": {"Host": "evil"}}, "headers"),
        ({"headers": {"x": "a\r\nb: c"}}, "headers"),
        ({"headers": {"mcp-session-id": "1"}}, "headers"),
        ({"headers": {"Authorization": "x"}, "authorization": "y"}, "authorization"),
        ({"authorization": "a\nb"}, "authorization"),
        ({"allowed_tools": "add"}, "allowed_tools"),
        ({"allowed_tools": {"names": []}}, "allowed_tools"),
        ({"allowed_tools": {"read_only": 1}}, "allowed_tools.read_only"),
        ({"require_approval": "sometimes"}, "require_approval"),
        ({"require_approval": {"never": {"tool_names": "x"}}}, "require_approval.never.tool_names"),
    ],
)
async def test_a_mistake_in_a_tool_is_named(fields: dict[str, Any], param: str) -> None:
    response = await ask(McpConfig(urls=("https://",)), {**tool("https://mcp.example.com/"), **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (400, f"tools[0].{param}"), response.text


async def test_one_server_is_named_once() -> None:
    response = await ask(
        McpConfig(urls=("https://",)), tool("https://mcp.example.com/"), tool("https://mcp.example.com/2")
    )
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools[1]")


async def test_a_choice_of_a_server_that_is_not_there_is_named() -> None:
    choice = {"type": "mcp", "server_label": "other"}
    response = await ask(McpConfig(urls=("https://",)), tool("https://mcp.example.com/"), tool_choice=choice)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tool_choice.server_label")


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/away", "redirects, which is not followed"),
        ("/huge", "larger than"),
        ("/packed", "compressed"),
        ("/nothing", "status 404"),
        ("/seen", "status 405"),
    ],
)
async def test_a_server_that_cannot_be_asked_fails_the_response(tools_url: str, path: str, why: str) -> None:
    config = McpConfig(urls=(f"{tools_url}/",))
    response = await ask(config, tool(f"{tools_url}{path}"))
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["code"]) == (
        424,
        "external_connector_error",
        "tool_server_failed",
    )
    assert "`calc`" in error["message"]
    assert why in error["message"]
    streamed = await ask(config, tool(f"{tools_url}{path}"), stream=True)
    ended = check_stream(streamed.text, EXTENSIONS)
    assert ended["status"] == "failed"
    assert why in ended["error"]["message"]
    assert "response.mcp_list_tools.failed" in streamed.text
    check_object(Response, ended, EXTENSIONS)


async def test_a_server_that_is_not_there_fails_the_response_soon() -> None:
    response = await ask(McpConfig(urls=("http://127.0.0.1:9/",), connect_timeout=3), tool("http://127.0.0.1:9/mcp"))
    assert response.status_code == 424
    assert "does not answer" in response.json()["error"]["message"]


async def test_a_server_with_more_tools_than_may_be_is_told_so(tools_url: str) -> None:
    config = McpConfig(urls=(f"{tools_url}/",), max_tools=2)
    response = await ask(config, tool(f"{tools_url}/mcp"))
    assert response.status_code == 424
    assert "allowed_tools" in response.json()["error"]["message"]
    assert (await ask(config, tool(f"{tools_url}/mcp", allowed_tools=["add", "big"]))).status_code == 200


async def test_without_the_package_the_client_hears_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "find_spec", lambda name: None)
    response = await ask(McpConfig(urls=("https://",)), tool("https://mcp.example.com/"))
    assert response.status_code == 400
    assert "pip install stentor[mcp]" in response.json()["error"]["message"]


async def test_no_request_goes_to_another_origin_whoever_asks_for_it(tools_url: str) -> None:
    place = await reach(f"{tools_url}/").place(f"{tools_url}/mcp")
    port = int(tools_url.rpartition(":")[2])
    async with httpx2.AsyncClient(transport=PinnedTransport(place), trust_env=False) as client:
        assert (await client.get(f"{tools_url}/seen")).status_code == 200
        for url in (
            f"http://127.0.0.1:{port + 1}/seen",
            f"https://127.0.0.1:{port}/seen",
            f"http://localhost:{port}/seen",
        ):
            with pytest.raises(httpx2.RemoteProtocolError, match="elsewhere"):
                await client.get(url)


async def test_connections_go_to_the_address_that_was_checked_under_the_name_that_was_asked_for(tools_url: str) -> None:
    port = int(tools_url.rpartition(":")[2])

    async def here(_host: str, _port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    url = f"http://tools.example.com:{port}/seen"
    place = await UrlAllowlist([f"http://tools.example.com:{port}/"], allow_private=True, resolve=here).place(url)
    async with httpx2.AsyncClient(transport=PinnedTransport(place), trust_env=False) as client:
        assert (await client.get(url)).status_code == 200


def test_the_package_is_not_imported_before_it_is_needed() -> None:
    names = ("mcp", "mcp_types", "httpx", "httpx2", "pydantic")
    program = (
        "import json, sys, stentor.server.app.lifecycle\n"
        f"print(json.dumps([name for name in {names} if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
