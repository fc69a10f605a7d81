"""How long somebody new takes from ``git clone`` to a spoken answer: ``python -P -m stentor.tests.browser.newcomer``.

Clones this checkout into an empty folder, runs the README's command there, opens the page once the server is ready, and
asks it something by microphone, in the server's own voice. Caches begin empty: pip's, and Stentor's with the models and
the native code.
"""

import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Final

from stentor.loadtest.record import describe_machine
from stentor.loadtest.server_process import Launched, StartFailed, hold_port
from stentor.tests.browser.visitor import browsing, missing, spoken, visiting

ROOT: Final = Path(__file__).resolve().parents[2]
COMMAND: Final = ("make", "serve")
ARGUMENTS: Final = "ARGS=--demo"
QUESTION: Final = "What is the capital of France?"
ANOTHERS: Final = ("VIRTUAL_ENV", "PYTHONPATH", "MAKEFLAGS", "MAKELEVEL", "PIP_CACHE_DIR")
"""Variables of whoever runs this."""
_SECONDS: Final = 1800
_POLL_MS: Final = 20
KEEP_CALL: Final = """
const Peer = window.RTCPeerConnection;
window.RTCPeerConnection = class extends Peer {
  constructor(...given) {
    super(...given);
    window.call = this;
  }
};
"""
SOUNDS: Final = """() => {
  const playing = (receiver) => receiver.getSynchronizationSources().some(({ audioLevel }) => audioLevel > 0.01);
  return Boolean(window.call?.getReceivers().some(playing));
}"""
"""Whether the browser plays what is no silence."""


def main() -> int:
    if why := missing(speech=True):
        print(f"not measured: {why}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        _show(measure(Path(folder)))
    return 0


def _show(ends: dict[str, float]) -> None:
    began, *_, end = moments = list(ends.values())
    for before, (step, at) in zip(moments, list(ends.items())[1:], strict=False):
        print(f"{at - before:7.1f} s  {step}")
    print(f"{end - began:7.1f} s  in all, on {describe_machine()['cpu']}", flush=True)


def measure(folder: Path) -> dict[str, float]:
    """When each step was done, by ``time.time()``."""
    ends = {"begun": time.time()}
    clone = folder / "stentor"
    subprocess.run(["git", "clone", "-q", f"file://{ROOT}", str(clone)], check=True)
    ends["git clone"] = time.time()
    environment = {name: value for name, value in os.environ.items() if name not in ANOTHERS}
    environment["XDG_CACHE_HOME"] = str(folder / "cache")
    with closing(hold_port()) as held:
        server = Launched(held.getsockname()[1])
        server.launch([*COMMAND, f"{ARGUMENTS} --port {server.port}"], cwd=clone, env=environment)
        try:
            server.wait_until("/health", _SECONDS)
            ends["make: an environment, packages"] = (clone / ".venv" / ".stamp").stat().st_mtime
            ends["make: models, native code, start"] = time.time()
            address = f"http://127.0.0.1:{server.port}"
            sound = folder / "question.wav"
            sound.write_bytes(spoken(address, QUESTION, before=0.5, after=6))
            with browsing(sound) as browser, visiting(browser, f"{address}/#voice", script=KEEP_CALL) as page:
                page.click("#voice-start")
                ends["a recorded question, a browser, the page"] = time.time()
                while not page.evaluate(SOUNDS):
                    page.wait_for_timeout(_POLL_MS)
                ends["the question spoken, the first sound of the answer"] = time.time()
        except StartFailed:
            print(server.output(), file=sys.stderr)
            raise
        finally:
            server.end()
    return ends


if __name__ == "__main__":
    sys.exit(main())
