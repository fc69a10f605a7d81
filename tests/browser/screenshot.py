"""Makes the picture of the page in the README: ``python -P -m stentor.tests.browser.screenshot OUT.png``."""

import sys
import tempfile
from pathlib import Path

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.browser.visitor import missing, spoken, visiting

QUESTION = "What is the capital of France?"
_MS = 60_000
_MOST_TURNS = 12


def main(out: str) -> int:
    if why := missing(speech=True):
        print(f"no picture: {why}", file=sys.stderr)
        return 1
    from playwright.sync_api import expect

    with ServerProcess(["--demo", "--max-model-len", "2048"]) as server, tempfile.TemporaryDirectory() as folder:
        address = f"http://127.0.0.1:{server.port}"
        sound = Path(folder) / "question.wav"
        sound.write_bytes(spoken(address, QUESTION, before=0.5, after=4))
        with visiting(f"{address}/#voice", sound) as page:
            expect(page.locator("#status")).to_contain_text("3 models")
            page.click("#voice-log summary")
            page.click("#voice-start")
            said = page.locator("#voice-messages .assistant .said")
            for turn in range(_MOST_TURNS):  # the smallest of models, and its answers are drawn
                expect(said).to_have_count(turn + 1, timeout=_MS)
                expect(page.locator("#voice-count")).to_have_text(str(turn + 1), timeout=_MS)
                if turn and "Paris" in said.last.inner_text():
                    break
            expect(page.locator("#voice-messages .user .said").last).to_contain_text("France")
            page.screenshot(path=out)
            page.click("#voice-end")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
