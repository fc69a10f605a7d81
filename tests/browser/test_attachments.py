"""Files that go with a message of the page: chosen, dropped or pasted, shown, and sent as content parts."""

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from stentor.tests.browser.visitor import CHROMIUM, browser_flags, missing
from stentor.tests.fakes import fake_state
from stentor.tests.server.middleware.listeners import serving

if TYPE_CHECKING:
    from playwright.async_api import Page, Route

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.browser,
    pytest.mark.skipif(bool(missing(speech=False)), reason=missing(speech=False)),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg=="
)
TRANSFER = """(place, [event, name, type, text]) => {
  const data = new DataTransfer();
  data.items.add(new File([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))], name, { type }));
  const options = { bubbles: true, cancelable: true };
  place.dispatchEvent(event === "paste" ? new ClipboardEvent(event, { ...options, clipboardData: data })
                                        : new DragEvent(event, { ...options, dataTransfer: data }));
}"""
"""Drops or pastes a file on an element."""


async def _transfer(page: "Page", event: str, name: str, kind: str, data: bytes) -> None:
    await page.locator("#chat-input").evaluate(TRANSFER, [event, name, kind, base64.b64encode(data).decode()])


async def _claim(page: "Page", *modalities: str) -> None:
    """The server says that its model takes these."""

    async def cards(route: "Route") -> None:
        found = await (await route.fetch()).json()
        for card in found["data"]:
            card["input_modalities"] = ["text", *modalities]
        await route.fulfill(json=found)

    await page.route("**/v1/models", cards)


@pytest.mark.proof
async def test_files_are_chosen_dropped_and_pasted_and_sent_with_the_message() -> None:
    from playwright.async_api import async_playwright, expect

    asked: list[dict[str, Any]] = []

    async def answer(route: "Route") -> None:
        asked.append(json.loads(route.request.post_data or ""))
        chunk = {"choices": [{"delta": {"content": "A pixel."}, "finish_reason": "stop"}]}
        await route.fulfill(content_type="text/event-stream", body=f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n")

    async with serving(fake_state()) as url, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=browser_flags(None))
        page = await browser.new_page()
        wrong: list[str] = []
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        await page.route("**/v1/chat/completions", answer)
        await _claim(page, "image", "audio", "file")
        await page.goto(url)
        await expect(page.locator("#chat-file")).to_have_attribute("accept", "image/*,audio/*,application/pdf,text/*")
        await page.set_input_files("#chat-file", {"name": "chosen.png", "mimeType": "image/png", "buffer": PIXEL})
        await _transfer(page, "drop", "dropped.wav", "audio/wav", b"RIFF")
        await _transfer(page, "paste", "pasted.pdf", "application/pdf", b"%PDF-1.7")
        await _transfer(page, "paste", "program", "application/x-executable", b"\x7fELF")
        await _transfer(page, "drop", "film.mp4", "video/mp4", b"ftyp")
        attached = page.locator("#chat-attached li")
        await expect(attached).to_have_count(3)
        wrongs = page.locator("#chat-messages .wrong")
        await expect(wrongs.nth(0)).to_contain_text("program is neither a picture")
        await expect(wrongs.nth(1)).to_contain_text("film.mp4: the model takes no videos.")
        await page.click("[aria-label='Remove dropped.wav']")
        await _transfer(page, "drop", "again.wav", "audio/wav", b"RIFF")
        await page.fill("#chat-input", "What is this?")
        await page.click("#chat-send")
        await expect(page.locator("#chat-messages .assistant .said")).to_have_text("A pixel.")
        picture = page.locator("#chat-messages .user img")
        assert await picture.evaluate("(shown) => shown.naturalWidth") == 1
        await expect(page.locator("#chat-messages .user audio")).to_have_count(1)
        await expect(attached).to_have_count(0)
        await page.fill("#chat-input", "And now?")
        await page.click("#chat-send")
        await expect(page.locator("#chat-messages .assistant .said")).to_have_count(2)
        await browser.close()
    content = asked[0]["messages"][-1]["content"]
    assert [part["type"] for part in content] == ["image_url", "file", "audio_url", "text"]
    assert content[0]["image_url"]["url"] == "data:image/png;base64," + base64.b64encode(PIXEL).decode()
    assert content[1]["file"]["filename"] == "pasted.pdf"
    assert content[1]["file"]["file_data"].startswith("data:application/pdf;base64,")
    assert content[2]["audio_url"]["url"].startswith("data:audio/wav;base64,")
    assert content[3] == {"type": "text", "text": "What is this?"}
    assert asked[1]["messages"][0]["content"] == content, "the next question brings the pictures of the one before"
    assert [line for line in wrong if "media" not in line.lower()] == []


@pytest.mark.proof
async def test_what_the_server_refuses_stays_attached() -> None:
    from playwright.async_api import async_playwright, expect

    async with serving(fake_state()) as url, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=browser_flags(None))
        page = await browser.new_page()
        await page.goto(url)
        await expect(page.locator("#chat-attach")).to_be_hidden()
        await _claim(page, "image")
        await page.reload()
        await expect(page.locator("#chat-attach")).to_be_visible()
        await page.set_input_files("#chat-file", {"name": "chosen.png", "mimeType": "image/png", "buffer": PIXEL})
        await page.click("#chat-send")  # without a word
        await expect(page.locator("#chat-messages .wrong")).to_be_visible()
        await expect(page.locator("#chat-attached li")).to_have_count(1)
        await page.click("#chat-attached button")
        await page.fill("#chat-input", "Hello")
        await page.click("#chat-send")
        await expect(page.locator("#chat-messages .assistant .figures-line")).to_contain_text("tokens")
        await browser.close()
