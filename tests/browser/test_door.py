"""The page behind a prefix and with a key, in Chromium, on a server without a model."""

import msgspec
import pytest

from stentor.server.middleware.access_control import AccessControl
from stentor.tests.browser.visitor import CHROMIUM, browser_flags, missing
from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.middleware.keyrings import keyring
from stentor.tests.server.middleware.listeners import serving

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.browser,
    pytest.mark.skipif(bool(missing(speech=False)), reason=missing(speech=False)),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


async def test_the_page_works_below_a_prefix_with_a_key_that_is_typed_in() -> None:
    from playwright.async_api import async_playwright, expect

    access = AccessControl(keyring("sesame"), root_path="/llm")
    async with serving(fake_state(access=access)) as url, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=browser_flags(None))
        page = await browser.new_page()
        await page.goto(f"{url}/llm")
        status = page.locator("#status")
        await expect(status).to_have_text("This server wants an API key")
        await page.fill("#key", "wrong")
        await page.press("#key", "Enter")
        await expect(status).to_have_text("This server wants an API key")
        await page.fill("#key", "sesame")
        await page.press("#key", "Enter")
        await expect(status).to_contain_text(" at 127.0.0.1")
        await page.fill("#chat-input", "hello")
        await page.click("#chat-send")
        await expect(page.locator("#chat-usage")).to_contain_text("/")
        assert await page.locator("#chat-messages .assistant .said").inner_text()
        assert await page.locator("#voice-modality").input_value() == "text"  # nobody speaks here
        assert await page.locator("#chat-drafted").is_hidden(), "no drafts were verified"
        await page.reload()
        await expect(status).to_contain_text(" at 127.0.0.1")  # the tab has kept the key
        await browser.close()


async def test_the_page_tells_how_many_tokens_a_step_an_answer_came_in_where_drafts_were_verified() -> None:
    from playwright.async_api import async_playwright, expect

    engine = FakeEngine(answer=says("hello there"))
    async with serving(fake_state(engine)) as url, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=browser_flags(None))
        page = await browser.new_page()
        await page.goto(url)
        for verified, told in ((10, "2.80"), (20, "1.00")):
            await page.fill("#chat-input", "hello")
            engine.gate.clear()
            async with page.expect_response("**/metrics"):
                await page.click("#chat-send")
            drafted = {"num_drafts": verified, "num_draft_tokens": 4 * verified, "accepted_by_position": [9, 5, 4]}
            engine.stats = msgspec.structs.replace(engine.stats, **drafted)
            engine.gate.set()
            await expect(page.locator("#chat-steps")).to_have_text(told)
        await browser.close()
