"""Calls of tools on MCP servers, on the page: asked about, made or refused, and told to the model."""

import ast
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx
import pytest

from stentor.server.config.config import McpConfig, ToolServer
from stentor.tests.browser.visitor import MILLISECONDS, missing
from stentor.tests.server.responses.sockets import serving
from stentor.tests.server.tools.scripted import Script, call, state_of
from stentor.tests.server.tools.tool_process import tool_server

if TYPE_CHECKING:
    from playwright.async_api import Browser, Locator, Page

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.browser,
    pytest.mark.skipif(bool(missing(speech=False)), reason=missing(speech=False)),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def tools_url() -> Iterator[str]:
    with tool_server() as url:
        yield url


@asynccontextmanager
async def visiting(browser: "Browser", tools_url: str, turns: Sequence[str]) -> AsyncIterator[tuple["Page", Script]]:
    """The page of a server whose model says ``turns``, and that knows the server of tools as ``calc``."""
    script = Script(turns)
    config = McpConfig(servers=(ToolServer("calc", f"{tools_url}/mcp"), ToolServer("gone", f"{tools_url}/nowhere")))
    async with serving(state_of(script, config)) as address, await browser.new_context() as profile:
        page = await profile.new_page()
        page.set_default_timeout(MILLISECONDS)
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        await page.goto(f"http://{address}/")
        await page.fill("#chat-mcp", "calc")
        yield page, script
        assert not wrong


def echoed(tools_url: str) -> list[str]:
    return [one["text"] for one in httpx.get(f"{tools_url}/seen").json() if one["tool"] == "echo"]


async def ask(page: "Page", text: str) -> None:
    await page.fill("#chat-input", text)
    await page.press("#chat-input", "Enter")


def last(page: "Page", part: str) -> "Locator":
    return page.locator("#chat-messages .assistant").last.locator(part)


async def test_a_call_is_made_once_the_reader_approves_it_and_the_model_goes_on(
    browser: "Browser", tools_url: str
) -> None:
    from playwright.async_api import expect

    turns = ["Let me see." + call("calc__echo", text="approved"), "It is said.", "You are welcome."]
    async with visiting(browser, tools_url, turns) as (page, script):
        await page.fill("#chat-system", "Be brief.")
        await ask(page, "Say it?")
        await expect(last(page, ".calls summary")).to_have_text("Wants to call calc.echo")
        await expect(last(page, ".calls pre")).to_contain_text('"text": "approved"')
        assert echoed(tools_url) == []
        await page.reload()  # the question outlasts it
        await last(page, ".calls form").get_by_text("Approve").click()
        await expect(last(page, ".said")).to_have_text("It is said.")
        await expect(page.locator("#chat-messages .tool .said")).to_have_text("Approved: calc.echo")
        await expect(last(page, ".calls pre").last).to_have_text("approved")
        assert echoed(tools_url) == ["approved"]
        await ask(page, "Thanks")
        await expect(last(page, ".said")).to_have_text("You are welcome.")
        assert echoed(tools_url) == ["approved"], "it is not made again"
        said = '<user>Say it?\n<assistant>Let me see.<call>calc__echo{"text": "approved"}\n<tool>approved\n'
        assert f"<system>Be brief.\n{said}<assistant>It is said.\n<user>Thanks\n" in script.prompts[-1]
        assert await page.locator("#chat-messages form:visible").count() == 0
        await page.click("#code-show")
        await page.select_option("#code-language", "python")
        program = ast.parse(await page.locator("#code-text pre").inner_text())
        (made,) = [node for node in ast.walk(program) if isinstance(node, ast.Call) and len(node.keywords) > 3]
        given = {keyword.arg: ast.literal_eval(keyword.value) for keyword in made.keywords}
        assert ast.unparse(made.func) == "client.responses.create"
        assert given["tools"] == [{"type": "mcp", "server_label": "calc", "require_approval": "always"}]


async def test_a_call_that_the_reader_denies_is_not_made_and_the_model_is_told(
    browser: "Browser", tools_url: str
) -> None:
    from playwright.async_api import expect

    turns = [call("calc__echo", text="one") + call("calc__echo", text="denied"), "Then not."]
    async with visiting(browser, tools_url, turns) as (page, script):
        await ask(page, "Say it?")
        rows = last(page, ".calls form .row")
        await rows.nth(0).get_by_text("Approve").click()
        await rows.nth(0).get_by_text("Deny").click()  # on second thoughts: nothing is sent before all have an answer
        await rows.nth(1).get_by_text("Deny").click()
        await expect(last(page, ".said")).to_have_text("Then not.")
        assert script.prompts[-1].count("the user did not approve this call") == 2
        assert "denied" not in echoed(tools_url)


async def test_calls_may_be_made_at_once_and_what_fails_is_shown(browser: "Browser", tools_url: str) -> None:
    from playwright.async_api import expect

    turns = [call("calc__add", a=2, b=40) + call("calc__fail", why="no luck"), "It is 42."]
    async with visiting(browser, tools_url, turns) as (page, _):
        await page.select_option("#chat-approval", "never")
        await ask(page, "What is it?")
        await expect(last(page, ".said")).to_have_text("It is 42.")
        await expect(last(page, ".calls summary")).to_have_text(["Calls calc.add", "Calls calc.fail"])
        await expect(last(page, ".calls pre").nth(1)).to_have_text("42")
        await expect(last(page, ".calls pre.wrong")).to_contain_text("no luck")
        await page.fill("#chat-mcp", "no name at all")
        await ask(page, "And?")
        await expect(page.locator("#chat-messages .wrong .said")).to_contain_text("“no name at all” is no MCP server")
        await page.fill("#chat-mcp", "elsewhere https://tools.example.com/mcp")
        await page.click("#chat-send")
        await expect(page.locator("#chat-messages .wrong .said")).to_contain_text("tools[0].server_url")
        await page.fill("#chat-mcp", "gone")
        await page.click("#chat-send")
        await expect(page.locator("#chat-messages .wrong .said")).to_contain_text("gone")
        await expect(page.locator("#chat-messages .assistant")).to_have_count(1)
        await expect(page.locator("#chat-input")).to_have_value("And?")
