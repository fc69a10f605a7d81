"""What a tool of a request says about its server: which tools it may offer, and what waits for approval."""

from typing import Any

import pytest

from stentor.server.media.fetching.urls import parse
from stentor.server.tools.servers import Server, may_repeat, read_server
from stentor.server.tools.tools import function_name, offered
from stentor.server.tools.url_allowlist import ServerAddress

READS = {"readOnlyHint": True}
WRITES = {"readOnlyHint": False}


def server(own: bool = False, **fields: Any) -> Server:
    place = ServerAddress(parse("https://mcp.example.com/"), None)
    return read_server({"type": "mcp", "server_label": "calc", **fields}, place, "tools[0]", own=own)


@pytest.mark.parametrize(
    ("asked", "read", "write", "named"),
    [
        ("always", True, True, True),
        ("never", False, False, False),
        (None, True, True, True),
        ({}, True, True, True),
        ({"never": {"read_only": True}}, False, True, True),
        ({"never": {"tool_names": ["named"]}}, True, True, False),
        ({"always": {"read_only": False}}, False, True, True),
        ({"always": {"tool_names": ["named"]}}, False, False, True),
        ({"always": {"tool_names": ["named"]}, "never": {"read_only": True}}, False, True, True),
        ({"always": {"tool_names": ["read"]}, "never": {"tool_names": ["read"]}}, True, True, True),
        ({"never": {"tool_names": ["read", "named"], "read_only": True}}, False, True, True),
    ],
)
def test_what_waits_for_approval(asked: Any, read: bool, write: bool, named: bool) -> None:
    approval = server(require_approval=asked).approval
    assert approval.needed("read", READS) is read
    assert approval.needed("write", WRITES) is write
    assert approval.needed("named", None) is named


def test_the_operator_s_own_servers_wait_only_where_the_client_wants_it() -> None:
    assert not server(own=True).approval.needed("write", WRITES)
    assert server(own=True, require_approval="always").approval.needed("read", READS)


def test_a_server_that_says_nothing_of_a_tool_has_not_said_that_it_only_reads() -> None:
    assert not may_repeat(None)
    assert not may_repeat({"readOnlyHint": "true"})
    assert may_repeat(READS)
    assert may_repeat({"idempotentHint": True})


def test_functions_have_names_that_every_template_takes_and_the_first_of_two_has_it() -> None:
    assert function_name("calc", "do it/now.ü") == "calc__do_it_now__"
    assert function_name("browser", "search") == "browser.search"
    assert len(function_name("x" * 64, "y" * 128)) == 64
    lists: dict[str, list[dict[str, Any]]] = {
        "calc": [{"name": name, "description": name, "input_schema": {}} for name in ("a b", "a_b")]
    }
    found = offered([server(server_description="Of sums.")], lists)
    assert [(name, tool.name, tool.description) for name, tool in found.items()] == [
        ("calc__a_b", "a b", "a b\n\nOf sums.")
    ]
