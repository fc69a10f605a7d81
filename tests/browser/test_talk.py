"""What the page does with a conversation that is cleared, fails, is cut or changed; in Chromium, without a model."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from stentor.server.app.state import ServerState
from stentor.tests.browser.visitor import MILLISECONDS, missing
from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.harness import until
from stentor.tests.server.responses.sockets import serving

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.browser,
    pytest.mark.skipif(bool(missing(speech=False)), reason=missing(speech=False)),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

KEEP_STREAMS = """
window.streams = [];
const devices = navigator.mediaDevices;
const open = devices.getUserMedia.bind(devices);
devices.getUserMedia = async (wanted) => {
  const stream = await open(wanted);
  window.streams.push(stream);
  return stream;
};
"""
"""Lets a test check whether the page has released the microphone."""


@asynccontextmanager
async def visiting(browser: "Browser", served: FakeEngine | ServerState, tab: str = "chat") -> AsyncIterator["Page"]:
    from playwright.async_api import expect

    state = served if isinstance(served, ServerState) else fake_state(served)
    async with serving(state) as address, await browser.new_context(permissions=["microphone"]) as profile:
        page = await profile.new_page()
        page.set_default_timeout(MILLISECONDS)
        await page.add_init_script(KEEP_STREAMS)
        await page.goto(f"http://{address}/#{tab}")
        await expect(page.locator("#status")).to_contain_text(" at 127.0.0.1")
        yield page


async def ask(page: "Page", text: str) -> None:
    await page.fill("#chat-input", text)
    await page.click("#chat-send")


def prompt_of(engine: FakeEngine) -> str:
    return bytes(token for token in engine.streams[-1].prompt if token < 256).decode()


async def test_an_answer_that_was_cleared_away_is_not_told_to_the_model(browser: "Browser") -> None:
    from playwright.async_api import expect

    engine = FakeEngine(answer=says("word ", repeat=True), max_model_len=2048, delay=0.02)
    async with visiting(browser, engine) as page:
        said = page.locator("#chat-messages .assistant .said")
        await ask(page, "First?")
        await expect(said).to_contain_text("word word")
        await page.click("#chat-clear")
        await page.fill("#chat-tokens", "3")
        await ask(page, "Second?")
        await expect(page.locator("#chat-send")).to_be_visible()
        await expect(said).to_have_text("wor")
        assert prompt_of(engine) == "<user>Second?\n<assistant>"
        assert await page.locator("#chat-messages .said").all_inner_texts() == ["Second?", "wor"]
        assert await page.locator("#chat-messages .message.cut").count() == 0


async def test_a_question_that_failed_can_be_sent_again_and_leaves_no_empty_answer(browser: "Browser") -> None:
    from playwright.async_api import expect

    async with visiting(browser, FakeEngine(answer=says("Yes."))) as page:
        await page.fill("#chat-tokens", "100000")
        await ask(page, "Is it?")
        await expect(page.locator("#chat-messages .wrong .said")).to_contain_text("100000")
        assert await page.locator("#chat-messages .assistant").count() == 0
        await expect(page.locator("#chat-messages .user.unanswered .said")).to_have_text("Is it?")
        assert await page.input_value("#chat-input") == "Is it?"
        await page.fill("#chat-tokens", "100")
        await page.click("#chat-send")
        await expect(page.locator("#chat-messages .assistant .said")).to_have_text("Yes.")


async def test_an_answer_that_the_token_limit_cut_says_so(browser: "Browser") -> None:
    from playwright.async_api import expect

    async with visiting(browser, FakeEngine(answer=says("Yes indeed."))) as page:
        await page.fill("#chat-tokens", "3")
        await ask(page, "Is it?")
        await expect(page.locator("#chat-messages .assistant.limited .said")).to_have_text("Yes")
        await page.fill("#chat-tokens", "100")
        await ask(page, "Is it?")
        await expect(page.locator("#chat-messages .assistant:not(.limited) .said")).to_have_text("Yes indeed.")


async def test_the_microphone_is_let_go_of_when_the_tab_is_left(browser: "Browser") -> None:
    from playwright.async_api import expect

    async with visiting(browser, FakeEngine(), "voice") as page:
        await page.click("#voice-start")
        await expect(page.locator("#voice-end")).to_be_enabled()
        await expect(page.locator("#voice-device option")).not_to_have_count(1)  # they have names now
        assert await page.evaluate("streams.flatMap((s) => s.getTracks()).map((t) => t.readyState)") == ["live"]
        await page.click("#chat-tab")
        await expect(page.locator("#voice-state")).to_have_text("Not connected")
        assert await page.evaluate("streams.flatMap((s) => s.getTracks()).map((t) => t.readyState)") == ["ended"]


@pytest.mark.proof
async def test_settings_that_are_changed_in_a_session_count_from_the_next_answer(browser: "Browser") -> None:
    from playwright.async_api import expect

    engine = FakeEngine(answer=says("Yes."), max_model_len=2048)
    async with visiting(browser, engine, "voice") as page:
        await page.fill("#voice-instructions", "Be brief.")
        await page.click("#voice-start")
        await expect(page.locator("#voice-send")).to_be_enabled()
        await expect(page.locator("#voice-model")).to_be_disabled()
        await page.fill("#voice-instructions", "Be long.")
        await page.fill("#voice-input", "Is it?")
        await page.click("#voice-send")
        await expect(page.locator("#voice-count")).to_have_text("1")
        assert prompt_of(engine).startswith("<system>Be long.\n<user>Is it?")
        await page.click("#voice-end")
        await expect(page.locator("#voice-model")).to_be_enabled()


@pytest.mark.proof
async def test_the_microphone_s_button_says_what_it_does_and_mutes(browser: "Browser") -> None:
    from playwright.async_api import expect

    async with visiting(browser, FakeEngine(), "voice") as page:
        button = page.locator("#voice-start")
        await expect(button).to_have_text("Start microphone")
        await button.click()
        await expect(button).to_have_text("Mute microphone")
        await button.click()
        await expect(button).to_have_text("Unmute microphone")
        await expect(button).to_have_attribute("aria-pressed", "false")
        await expect(page.locator("#voice-level")).to_have_js_property("value", 0)
        await page.click("#voice-end")
        await expect(button).to_have_text("Start microphone")
        assert await button.get_attribute("aria-pressed") is None


@pytest.mark.proof
async def test_who_holds_a_button_to_talk_is_heard_until_it_is_let_go(browser: "Browser") -> None:
    from playwright.async_api import expect

    async with visiting(browser, FakeEngine(answer=says("Yes.")), "voice") as page:
        sent: list[dict[str, Any]] = []
        page.on("websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(json.loads(frame))))
        await page.select_option("#voice-turns", "push")
        hold = page.locator("#voice-hold")
        await expect(hold).to_be_hidden()
        await page.click("#voice-start")
        await expect(hold).to_be_visible()
        await expect(page.locator("#voice-level")).not_to_have_js_property("value", 0)
        assert sent[0]["session"]["audio"]["input"]["turn_detection"] is None
        assert [event["type"] for event in sent] == ["session.update"], "nothing is heard before"
        await hold.focus()
        await page.keyboard.down(" ")
        await until(lambda: sum(event["type"] == "input_audio_buffer.append" for event in sent) > 5)
        await page.keyboard.up(" ")
        await until(lambda: sent[-1]["type"] == "response.create")
        assert sent[-2]["type"] == "input_audio_buffer.commit"


async def test_a_connection_that_is_lost_is_made_again_with_what_was_said(browser: "Browser") -> None:
    from playwright.async_api import expect

    engine = FakeEngine(answer=says("Yes."), max_model_len=2048)
    routes: list[Any] = []

    def keep(route: Any) -> None:
        route.connect_to_server()
        routes.append(route)

    async with visiting(browser, engine, "voice") as page:
        await page.route_web_socket("**/v1/realtime**", keep)
        await page.select_option("#voice-modality", "text")
        await page.select_option("#voice-turns", "push")  # this server has nothing to hear with
        await page.click("#voice-start")
        await expect(page.locator("#voice-send")).to_be_enabled()
        await page.fill("#voice-input", "Is it?")
        await page.click("#voice-send")
        await expect(page.locator("#voice-messages .assistant .said")).to_have_text("Yes.")
        await routes[0].close(code=3001, reason="gone")
        await until(lambda: len(routes) == 2)
        await expect(page.locator("#voice-state")).to_have_text("Listening …")
        await page.fill("#voice-input", "Still?")
        await page.click("#voice-send")
        await expect(page.locator("#voice-messages .assistant .said")).to_have_count(2)
        await expect(page.locator("#voice-count")).to_have_text("2")
        assert "<user>Is it?\n<assistant>Yes.\n<user>Still?\n" in prompt_of(engine)
        assert await page.locator("#voice-messages .wrong").count() == 0


@pytest.mark.proof
async def test_a_call_that_the_server_hangs_up_says_so(browser: "Browser") -> None:
    from playwright.async_api import expect

    pytest.importorskip("aiortc", reason="the extra `webrtc` is not installed")
    async with visiting(browser, FakeEngine(), "voice") as page:
        async with page.expect_response("**/v1/realtime/calls**") as answered:
            await page.click("#voice-start")
        await expect(page.locator("#voice-end")).to_be_enabled()
        location = await (await answered.value).header_value("location")
        await page.evaluate("(call) => fetch(`${call}/hangup`, { method: 'POST' })", location)
        await expect(page.locator("#voice-messages .wrong .said").last).to_contain_text("the server has hung up")
        await expect(page.locator("#voice-state")).to_have_text("Not connected")


async def test_a_call_goes_on_with_a_server_that_has_been_started_again(browser: "Browser") -> None:
    from playwright.async_api import expect

    pytest.importorskip("aiortc", reason="the extra `webrtc` is not installed")
    before, after = fake_state(FakeEngine()), fake_state(FakeEngine(answer=says("Yes.")))
    async with visiting(browser, before, "voice") as page, serving(after) as address:

        async def go_there(route: Any) -> None:
            asked = urlsplit(route.request.url)._replace(netloc=address).geturl()
            answer = await route.fetch(url=asked, headers={"content-type": "application/sdp"})
            await route.fulfill(response=answer)

        await page.select_option("#voice-modality", "text")
        await page.click("#voice-start")
        await expect(page.locator("#voice-end")).to_be_enabled()
        await page.route("**/v1/realtime/calls**", go_there)
        async with page.expect_response("**/v1/realtime/calls**"):
            await before.for_realtime.calls.close()
        await expect(page.locator("#voice-state")).to_have_text("Listening …")
        await page.fill("#voice-input", "Is it?")
        await page.click("#voice-send")
        await expect(page.locator("#voice-messages .assistant .said")).to_have_text("Yes.")
        assert len(after.for_realtime.calls) == 1
        await expect(
            page.locator("#voice-messages .wrong", has_text=re.compile("shutting down|hung up"))
        ).to_have_count(0)


TRACE = """async () => {
  const { Trace } = await import("/page/trace.js");
  const place = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const trace = new Trace(place);
  const times = Array.from({ length: 500 }, (_, at) => [(at + 1) * 40, 0, at % 2]); // 20 s
  trace.began(1000);
  trace.ended(3000); // out of sight
  trace.began(6000);
  trace.ended(8000);
  trace.began(19000); // and goes on
  trace.ended(20500); // as the server has it, whose clock may be ahead
  trace.began(21000);
  trace.show(times);
  trace.show(times);
  while (!place.childElementCount) await new Promise((done) => setTimeout(done, 20));
  const sides = (mark) => ["x", "width"].map((name) => Number(mark.getAttribute(name)));
  const marks = [...place.querySelectorAll("rect")].map(sides);
  const points = place.querySelector("polyline").getAttribute("points").split(" ");
  trace.clear();
  return { marks, count: points.length, last: points.at(-1), left: place.childElementCount };
}"""


async def test_the_trace_shows_how_loud_it_was_and_what_the_server_took_for_speech(browser: "Browser") -> None:
    from playwright.async_api import expect

    async with visiting(browser, FakeEngine(), "voice") as page:
        assert await page.evaluate(TRACE) == {
            "marks": [[1000, 2000], [14000, 1000], [15000, 0]],
            "count": 150,
            "last": "15000,0",
            "left": 0,
        }
        await page.click("#voice-start")
        await expect(page.locator("#voice-trace polyline")).to_have_attribute("points", re.compile(r"15000,"))
