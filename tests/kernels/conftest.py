"""Kernels are interpreted where there is no GPU, by an interpreter that is quicker than Triton's own."""

import os
from collections.abc import Iterator

import pytest

from stentor.tests.kernels.interpreter_types import keep_types
from stentor.tests.support.interpreter import shuffled, speed_up


def pytest_runtest_setup(item: pytest.Item) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1" and item.get_closest_marker("triton"):
        speed_up()
        keep_types()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Kernels take each value of every parameter in `make test`, and all pairs in `make proof`."""
    item.add_marker(pytest.mark.sampled)


@pytest.fixture(autouse=True)
def _order_of_programs(request: pytest.FixtureRequest) -> Iterator[None]:
    """That of ``--shuffle``, in tests that interpret kernels."""
    seed = request.config.getoption("shuffle")
    if seed is None or os.environ.get("TRITON_INTERPRET") != "1" or not request.node.get_closest_marker("triton"):
        yield
        return
    with shuffled(seed):
        yield
