"""How the page looks and what it says of itself: phones, darkness, languages, figures of now, the log of events.

All tests share a server and a page.
"""

import pytest

from stentor.tests.browser.visit import Visit
from stentor.tests.browser.visitor import missing

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.browser,
    pytest.mark.skipif(bool(missing(speech=False)), reason=missing(speech=False)),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


async def test_the_figures_of_now_are_drawn_while_somebody_looks(visit: Visit) -> None:
    from playwright.async_api import expect

    page = visit.page
    await page.click("#live-tab")
    cards = page.locator("#live-cards .card")
    await expect(cards).to_have_count(7)
    await expect(cards.filter(has_text="Running").locator("p")).to_have_text(str(visit.engine.stats.running))
    await expect(cards.filter(has_text="KV cache").locator("p")).to_have_text("50 %")
    await expect(cards.filter(has_text="First token").locator("p")).not_to_contain_text("ms")  # in the last half minute
    await expect(page.locator("#live-models tr")).to_contain_text(["fake-model", "fake-voice"])
    await page.click("#chat-tab")


async def test_a_phone_has_room_for_the_message_and_nothing_beside_the_screen(visit: Visit) -> None:
    from playwright.async_api import expect

    page = visit.page
    await page.set_viewport_size({"width": 390, "height": 800})
    await page.reload()
    await expect(page.locator("#chat-settings")).to_be_hidden()
    for tab in ("voice", "live", "chat"):
        await page.click(f"#{tab}-tab")
        assert await page.evaluate("document.documentElement.scrollWidth") == 390, tab
    message, header = await page.locator("#chat-input").bounding_box(), await page.locator("header").bounding_box()
    assert message is not None
    assert message["width"] > 250
    assert header is not None
    assert header["height"] < 60
    await visit.ask("Hi", "Yes.")
    for part in ("#chat-gauge", "#chat-context", "#code-show"):
        await expect(page.locator(part)).to_be_in_viewport()
    assert await page.evaluate("document.documentElement.scrollWidth") == 390
    await expect(page.locator("#chat-history")).to_be_hidden()
    await page.click("#history-show")
    await expect(page.locator("#history-search")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(page.locator("#chat-history")).to_be_hidden()
    await page.set_viewport_size({"width": 1280, "height": 720})


async def test_the_page_is_dark_where_the_system_or_the_reader_wants_it_and_tabs_answer_to_arrows(visit: Visit) -> None:
    from playwright.async_api import expect

    page, ground = visit.page, "getComputedStyle(document.body).backgroundColor"
    light, dark = "rgb(246, 247, 247)", "rgb(15, 21, 20)"
    for scheme, shown in (("light", light), ("dark", dark)):
        await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert await page.evaluate(ground) == shown
    await page.click("#theme")
    assert await page.evaluate(ground) == light
    await page.click("#theme")
    await page.emulate_media(color_scheme="light")
    await page.reload()
    assert await page.evaluate(ground) == dark
    await page.focus("#chat-tab")
    await page.keyboard.press("ArrowRight")
    await expect(page.locator("#voice-tab")).to_be_focused()
    await expect(page.locator("#voice")).to_be_visible()


async def test_the_page_speaks_german_to_who_wants_it(visit: Visit) -> None:
    from playwright.async_api import expect

    page = visit.page
    await page.click("#chat-tab")
    await page.select_option("#language", "de")
    await expect(page.locator("html")).to_have_attribute("lang", "de")
    await expect(page.locator("#chat-clear")).to_have_text("Neues Gespräch")
    await expect(page.locator("#chat-input")).to_have_attribute("placeholder", "Nachricht")
    await visit.ask("Und?", "Ja.", fresh=True)
    await expect(page.locator("#chat-messages .user > b")).to_have_text("Sie")
    await expect(page.locator("#chat-messages .figures-line")).to_contain_text("erstes Token")
    await page.select_option("#language", "en")
    await expect(page.locator("#chat-clear")).to_have_text("New chat")


LOG = """async () => {
  const { EventLog } = await import("/page/log.js");
  const made = (tag) => document.createElement(tag);
  const [list, count, withAudio, filter, save] = ["ol", "span", "input", "input", "button"].map(made);
  document.body.append(list, save);
  const log = new EventLog({ list, count, withAudio, filter, save });
  const delta = (text) => log.add({ type: "response.output_text.delta", event_id: "e", delta: text }, false);
  log.add({ type: "session.update", session: { instructions: "Hm" } }, true);
  ["a", "b", "c"].forEach(delta);
  log.add({ type: "response.output_audio.delta", delta: "AAAA" }, false);
  log.add({ type: "response.done" }, false);
  delta("d");
  const lines = [...list.children].map((line) => line.textContent.replace(/[0-9.]+ s/, ""));
  filter.value = "done";
  filter.dispatchEvent(new Event("input"));
  const left = [...list.children].filter((line) => !line.hidden).map((line) => line.dataset.type);
  const whole = list.children[1].firstChild;
  whole.open = true;
  await new Promise((done) => setTimeout(done));
  const opened = JSON.parse(whole.querySelector("pre").textContent).length;
  list.remove();
  save.remove();
  const saved = log.events.map(({ event }) => event.delta ?? event.type);
  return { lines, left, opened, count: count.textContent, saved };
}"""


async def test_like_events_of_a_session_are_one_line_that_opens_and_all_are_saved(visit: Visit) -> None:
    assert await visit.page.evaluate(LOG) == {
        "lines": [
            '→ session.update{"session":{"instructions":"Hm"}}',
            "← response.output_text.delta \N{MULTIPLICATION SIGN} 3abc",
            "← response.done{}",
            '← response.output_text.delta{"delta":"d"}',
        ],
        "left": ["response.done"],
        "opened": 3,
        "count": "7",
        "saved": ["session.update", "a", "b", "c", "(3 bytes)", "response.done", "d"],
    }
