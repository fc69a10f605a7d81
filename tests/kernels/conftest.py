"""Kernels are interpreted where there is no GPU, by an interpreter that is quicker than Triton's own."""

import os

import pytest

from stentor.tests.kernels.interpreter_types import keep_types
from stentor.tests.support.interpreter import speed_up


def pytest_runtest_setup(item: pytest.Item) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1" and item.get_closest_marker("triton"):
        speed_up()
        keep_types()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Kernels take each value of every parameter in `make test`, and all pairs in `make proof`."""
    item.add_marker(pytest.mark.sampled)
