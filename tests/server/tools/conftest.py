"""One server of tools for all tests of this folder."""

from collections.abc import Iterator

import pytest

from stentor.server.tools import connection
from stentor.tests.server.tools.tool_process import tool_server

LOADED = connection
"""It takes seconds, which tests with a time limit need not spend."""


@pytest.fixture(scope="session")
def tools_url() -> Iterator[str]:
    """Its address, without a path."""
    with tool_server() as url:
        yield url
