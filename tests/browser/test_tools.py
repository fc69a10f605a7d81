"""The page's forms for transcription, speech, embeddings and ranking; in Chromium, with models that are scripted."""

from pathlib import Path

import pytest

from stentor.server.config.model_registry import ModelRegistry, ServedModel
from stentor.server.tts.metrics import SpeechMetrics
from stentor.tests.browser.visitor import CHROMIUM, MILLISECONDS, browser_flags, missing
from stentor.tests.fakes import fake_state
from stentor.tests.server.asr import scripted
from stentor.tests.server.asr.test_http import WavReader, hears, wav
from stentor.tests.server.pooling.pooler import FakePooler, config, model_of
from stentor.tests.server.responses.sockets import serving
from stentor.tests.server.tts.test_model import speaking_model

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.browser,
    pytest.mark.skipif(bool(missing(speech=False)), reason=missing(speech=False)),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

NAMES = {"chat": "fake/model", "transcription": "whisper", "speech": "voice", "embedding": "vectors"}


@pytest.mark.proof  # starts a voice's process
async def test_files_are_transcribed_texts_spoken_lines_compared_and_documents_ranked(tmp_path: Path) -> None:
    from playwright.async_api import async_playwright, expect

    hearing, vectors = scripted.model_of(hears), model_of(FakePooler(), config())
    registry = ModelRegistry([ServedModel(kind, (name,)) for kind, name in NAMES.items()])  # type: ignore[arg-type]
    async with speaking_model(tmp_path) as voice:
        await voice.wait_started()
        state = fake_state(
            registry=registry,
            transcription=hearing,
            decoder=WavReader(),
            speech=voice,
            embedding=vectors,
            runners={"transcription": hearing.client, "speech": voice, "embedding": vectors.client},
        )
        voice.watch(SpeechMetrics(state.metrics.registry, "voice"))
        async with serving(state) as address, async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=browser_flags(None))
            page = await browser.new_page()
            page.set_default_timeout(MILLISECONDS)
            wrong: list[str] = []
            page.on("pageerror", lambda error: wrong.append(str(error)))
            await page.goto(f"http://{address}/#tools")
            await expect(page.locator("#tools .tool:visible")).to_have_count(4)
            await expect(page.locator("#tools-none")).to_be_hidden()

            sound = {"name": "a.wav", "mimeType": "audio/wav", "buffer": wav(scripted.sound(2))}
            await page.set_input_files("#transcribe-file", sound)  # type: ignore[arg-type]
            await page.click("#transcribe button.main")
            transcript = page.locator("#transcribe-text")
            await expect(transcript).to_have_text("Guten Tag --> ü.")
            await page.select_option("#transcribe-format", "verbose_json")
            await page.click("#transcribe button.main")
            await expect(transcript).to_contain_text("0.60 s Guten")
            await page.select_option("#transcribe-format", "srt")
            await page.click("#transcribe button.main")
            await expect(transcript).to_contain_text("00:00:00,000 --> 00:00:00,600")
            async with page.expect_download() as got:
                await page.click("#transcribe-save")
            assert (await got.value).suggested_filename == "a.srt"
            file = {"name": "a.wav", "mimeType": "audio/wav", "buffer": b"no sound"}
            await page.set_input_files("#transcribe-file", file)  # type: ignore[arg-type]
            await page.click("#transcribe button.main")
            await expect(page.locator("#transcribe-text.wrong")).to_contain_text("no audio")

            await expect(page.locator("#speak-voice option")).to_have_text(["the default", "one", "second"])
            await page.fill("#speak-text", "Hello")
            await page.click("#speak button")
            await expect(page.locator("#speak-note")).to_contain_text("until the whole sound")
            assert await page.locator("#speak-sound").evaluate("(player) => player.src.startsWith('blob:')")

            await page.fill("#embed-lines", "a b\nc d\na b")
            await page.click("#embed button")
            await expect(page.locator("#embed-note")).to_contain_text("8 numbers")
            first = page.locator("#embed-table tbody tr").first.locator("td")
            assert (await first.all_inner_texts())[::2] == ["1.000", "1.000"]

            await page.fill("#rank-lines", "a b\nc d")
            await page.click("#rank button")
            ranked = page.locator("#rank-list li")
            await expect(ranked).to_have_count(2)
            scores = [float(text.split()[0]) for text in await ranked.all_inner_texts()]
            assert scores == sorted(scores, reverse=True)
            await browser.close()
            assert not wrong
