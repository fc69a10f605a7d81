"""Makes the picture of the page in the README: ``python -P -m stentor.tests.browser.screenshot OUT.png``."""

import json
import sys
import tempfile
from pathlib import Path

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.browser.visitor import MODELS, browsing, missing, spoken, visiting

QUESTION = "What is the capital of France?"
TURNS = 2
_MS = 60_000


def main(out: str) -> int:
    if why := missing(speech=True):
        print(f"no picture: {why}", file=sys.stderr)
        return 1
    from playwright.sync_api import expect

    with tempfile.TemporaryDirectory() as folder:
        greedy = Path(folder) / "generation_config.json"
        greedy.write_text(json.dumps({"temperature": 0}))
        with ServerProcess([*MODELS, "--generation-config", str(greedy)]) as server:
            address = f"http://127.0.0.1:{server.port}"
            sound = Path(folder) / "question.wav"
            sound.write_bytes(spoken(address, QUESTION, before=0.5, after=6))
            with browsing(sound) as browser, visiting(browser, f"{address}/#voice") as page:
                expect(page.locator("#status")).to_contain_text("3 models")
                page.click("#voice-log summary")
                page.click("#voice-start")
                expect(page.locator("#voice-count")).to_have_text(str(TURNS), timeout=_MS)
                expect(page.locator("#voice-state")).to_have_text("Listening …", timeout=_MS)
                page.screenshot(path=out)
                page.click("#voice-end")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
