"""Opens the page in a real browser, with a recording in place of the microphone."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx

from stentor.engine.loading.download.hub import DEFAULT_MODEL, DEMO_SPEECH_MODEL, DEMO_TRANSCRIPTION_MODEL
from stentor.tests.support.whole_audio import encode_whole, resample

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MODELS: Final = (
    *(DEFAULT_MODEL, "--max-model-len", "2048"),
    *("--transcription-model", DEMO_TRANSCRIPTION_MODEL, "--speech-model", DEMO_SPEECH_MODEL),
)
"""What a server that talks needs of ``--demo``."""
RATE: Final = 48_000
"""Samples a second of what the browser takes for its microphone."""
MILLISECONDS: Final = 60_000
"""For which an action or an expectation is waited for: the browser shares its cores with other tests."""
SIZE: Final = {"width": 1280, "height": 800}


def missing(*, speech: bool) -> str:
    """What a visit needs and this machine lacks, in words; "" where there is nothing."""
    if find_spec("playwright") is None:
        return "needs playwright, which the extra `dev` brings"
    if CHROMIUM is None:
        return "needs Chromium: Debian's package `chromium`, or another one on the PATH"
    if speech and find_spec("piper") is None:
        return "needs the demo voice: the extra `speech`"
    return ""


def browser_flags(microphone: Path | None) -> list[str]:
    flags = ["--no-sandbox", "--autoplay-policy=no-user-gesture-required", "--use-fake-ui-for-media-stream"]
    flags.append("--use-fake-device-for-media-stream")
    return flags if microphone is None else [*flags, f"--use-file-for-fake-audio-capture={microphone}"]


@contextmanager
def browsing(microphone: Path | None = None) -> Iterator["Browser"]:
    """A browser whose microphone plays the wav file ``microphone`` in a loop."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=browser_flags(microphone))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visiting(browser: "Browser", url: str, key: str = "", script: str = "") -> Iterator["Page"]:
    """The page, in a profile of its own; ``script`` runs first, ``key`` is typed in. Errors on the page are raised;
    an error of its visitor's comes with what stood on its console, and where a picture of it lies."""
    with browser.new_context(viewport=SIZE, permissions=["microphone"]) as profile:  # type: ignore[arg-type]
        page = profile.new_page()
        page.set_default_timeout(MILLISECONDS)
        page.add_init_script(script)
        said: list[tuple[str, str]] = []
        page.on("pageerror", lambda error: said.append(("error", str(error))))
        page.on("console", lambda message: said.append((message.type, message.text)))
        try:
            page.goto(url)
            if key:
                page.fill("#key", key)
                page.press("#key", "Enter")
            yield page
        except Exception as error:
            picture = Path(tempfile.mkdtemp(prefix="stentor-page-")) / "page.png"
            error.add_note(f"the page's console: {said}; its picture: {picture}")
            with suppress(Exception):  # of a page that no longer answers
                page.screenshot(path=picture)
            raise
        wrong = [text for kind, text in said if _is_wrong(text, kind)]
        assert not wrong, wrong


def _is_wrong(text: str, kind: str) -> bool:
    """Chromium says of every refusal that it failed to load; the page shows those."""
    return kind == "error" and not text.startswith("Failed to load resource")


def spoken(address: str, text: str, before: float, after: float, key: str = "unused") -> bytes:
    """A wav in which the server's own voice says ``text`` between so many seconds of silence."""
    headers, body = {"authorization": f"Bearer {key}"}, {"input": text, "response_format": "pcm"}
    answer = httpx.post(f"{address}/v1/audio/speech", json=body, headers=headers, timeout=60)
    answer.raise_for_status()
    pcm = resample(answer.content, 24_000, RATE)
    return encode_whole(bytes(2 * int(before * RATE)) + pcm + bytes(2 * int(after * RATE)), "wav", RATE)
