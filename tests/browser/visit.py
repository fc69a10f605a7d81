"""A page with a server whose model says what the test wants."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stentor.server.parsing.output import TOOL_FORMATS, OutputFormat
from stentor.server.parsing.reasoning.formats import REASONING_FORMATS
from stentor.tests.browser.visitor import CHROMIUM, MILLISECONDS, browser_flags
from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.realtime.session_fakes import fake_speech
from stentor.tests.server.responses.sockets import serving

if TYPE_CHECKING:
    from playwright.async_api import Page


@dataclass
class Visit:
    page: "Page"
    engine: FakeEngine

    async def ask(self, text: str, answer: str, *, fresh: bool = False) -> None:
        """Has ``text`` answered with ``answer``, in a new chat where it is to be ``fresh``."""
        from playwright.async_api import expect

        if fresh:
            await self.page.click("#chat-clear")
        self.engine.answer = says(answer)
        await self.page.fill("#chat-input", text)
        await self.page.press("#chat-input", "Enter")
        await expect(self.page.locator("#chat-messages .assistant").last.locator(".figures-line")).to_be_visible()

    async def said(self) -> list[str]:
        return await self.page.locator("#chat-messages .said").all_inner_texts()

    @property
    def prompt(self) -> str:
        return bytes(token for token in self.engine.streams[-1].prompt if token < 256).decode()


@asynccontextmanager
async def visiting() -> AsyncIterator[Visit]:
    from playwright.async_api import async_playwright

    engine = FakeEngine(max_model_len=4096)
    engine.burst = 64
    output = OutputFormat(REASONING_FORMATS["qwen3"], TOOL_FORMATS["hermes"])
    state = fake_state(engine, output=output, served_names=("pypi:some/fake-model",), speech=fake_speech())
    async with serving(state) as address, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=browser_flags(None))
        profile = await browser.new_context(permissions=["clipboard-read", "clipboard-write"])
        page = await profile.new_page()
        page.set_default_timeout(MILLISECONDS)
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "request",
            lambda asked: None if address in asked.url or asked.url[:5] == "blob:" else wrong.append(asked.url),
        )
        await page.goto(f"http://{address}/")
        yield Visit(page, engine)
        await browser.close()
        assert not wrong
