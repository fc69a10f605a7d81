"""Servers that are attacked, one of each kind for a file."""

from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from stentor.protocols.common.limits import Limits
from stentor.server.config.limits import ConnectionLimits
from stentor.tests.server.attacks.hostile import Connection, Target, served

HOUR = 3600.0
SHORT = 0.3
"""Seconds: of the one limit that a test waits for."""


def _served(
    *,
    header_timeout: float = HOUR,
    body_timeout: float = HOUR,
    keep_alive_timeout: float = HOUR,
    max_pipelined: int = 16,
    max_per_client: int = 2048,
) -> AbstractContextManager[Target]:
    """No time passes that a test has not asked for, however slow the machine."""
    connections = ConnectionLimits(
        header_timeout=header_timeout,
        keep_alive_timeout=keep_alive_timeout,
        max_pipelined=max_pipelined,
        max_per_client=max_per_client,
    )
    return served(Limits(body_timeout=body_timeout), connections)


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with _served() as target:
        yield target


@pytest.fixture(scope="module")
def strict() -> Iterator[Target]:
    with _served(max_pipelined=2, max_per_client=24) as target:
        yield target


@pytest.fixture(scope="module")
def hurries_headers() -> Iterator[Target]:
    with _served(header_timeout=SHORT) as target:
        yield target


@pytest.fixture(scope="module")
def hurries_bodies() -> Iterator[Target]:
    with _served(body_timeout=SHORT) as target:
        yield target


@pytest.fixture(scope="module")
def hurries_the_idle() -> Iterator[Target]:
    with _served(keep_alive_timeout=SHORT) as target:
        yield target


@pytest.fixture
def connection(target: Target) -> Iterator[Connection]:
    connection = target.connect()
    yield connection
    connection.close()
