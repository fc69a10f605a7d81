"""Patience with a browser that shares its cores with other tests, and a page that a file of tests shares."""

from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from stentor.tests.browser.visit import Visit, visiting
from stentor.tests.browser.visitor import CHROMIUM, MILLISECONDS, browser_flags

if TYPE_CHECKING:
    from playwright.async_api import Browser


@pytest.fixture(autouse=True, scope="session")
def _patient() -> None:
    if find_spec("playwright") is not None:
        from playwright import async_api, sync_api

        for each in (async_api, sync_api):
            each.expect.set_options(timeout=MILLISECONDS)


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator["Browser"]:
    """One for all visits of a file, each of which has a profile of its own."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=browser_flags(None))
        yield browser
        await browser.close()


@pytest.fixture(scope="module")
async def visit() -> AsyncIterator[Visit]:
    async with visiting() as visit:
        yield visit
