"""One server of tools for all tests of this folder."""

from collections.abc import Iterator

import pytest

from stentor.tests.server.mcp.tool_process import tool_server


@pytest.fixture(scope="session")
def tools_url() -> Iterator[str]:
    """Its address, without a path."""
    with tool_server() as url:
        yield url
