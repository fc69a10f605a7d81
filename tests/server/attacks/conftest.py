"""Servers that are attacked, one of each kind for a file."""

from collections.abc import Iterator

import pytest

from stentor.protocols.common.limits import Limits
from stentor.server.config.limits import ConnectionLimits
from stentor.tests.server.attacks.hostile import Connection, Target, served


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with served() as target:
        yield target


@pytest.fixture(scope="module")
def strict() -> Iterator[Target]:
    """Times short enough to be waited for."""
    connections = ConnectionLimits(header_timeout=0.3, keep_alive_timeout=0.3, max_pipelined=2, max_per_client=24)
    with served(Limits(body_timeout=0.3), connections) as target:
        yield target


@pytest.fixture
def connection(target: Target) -> Iterator[Connection]:
    connection = target.connect()
    yield connection
    connection.close()
