"""Patience with a browser that shares its cores with other tests, and a page that a file of tests shares."""

from collections.abc import AsyncIterator
from importlib.util import find_spec

import pytest

from stentor.tests.browser.visit import Visit, visiting
from stentor.tests.browser.visitor import MILLISECONDS


@pytest.fixture(autouse=True, scope="session")
def _patient() -> None:
    if find_spec("playwright") is not None:
        from playwright import async_api, sync_api

        for each in (async_api, sync_api):
            each.expect.set_options(timeout=MILLISECONDS)


@pytest.fixture(scope="module")
async def visit() -> AsyncIterator[Visit]:
    async with visiting() as visit:
        yield visit
