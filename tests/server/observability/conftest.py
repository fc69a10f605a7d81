"""A collector of traces for the tests of this folder."""

import logging
from collections.abc import Iterator

import pytest

from stentor.tests.server.observability.collector import Collector, collecting


@pytest.fixture
def collector() -> Iterator[Collector]:
    before = logging.getLogger("opentelemetry").level
    with collecting() as one:
        yield one
    logging.getLogger("opentelemetry").setLevel(before)
