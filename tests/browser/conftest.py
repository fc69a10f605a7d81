"""Patience with a browser that shares its cores with other tests."""

from importlib.util import find_spec

import pytest

from stentor.tests.browser.visitor import MILLISECONDS


@pytest.fixture(autouse=True, scope="session")
def _patient() -> None:
    if find_spec("playwright") is not None:
        from playwright import async_api, sync_api

        for each in (async_api, sync_api):
            each.expect.set_options(timeout=MILLISECONDS)
