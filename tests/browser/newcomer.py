"""How long somebody new takes from ``git clone`` to a spoken answer: ``python -P -m stentor.tests.browser.newcomer``.

Clones what this checkout has committed into an empty folder, runs the README's command there, opens the page once
the server is ready, and asks it something by microphone, in the server's own voice. Caches begin empty: pip's, and
Stentor's with the models and the native code.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stentor.loadtest.record import describe_machine
from stentor.loadtest.server_process import Launched, hold_port
from stentor.tests.browser.visitor import MILLISECONDS, browsing, missing, spoken, visiting

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT: Final = Path(__file__).resolve().parents[2]
COMMAND: Final = ("make", "serve")
ARGUMENTS: Final = "ARGS=--demo"
QUESTION: Final = "What is the capital of France?"
LISTENS_AFTER: Final = 3.0
"""Seconds of silence before the question: the microphone is open some time before the server hears it."""
SILENCE: Final = 60.0
"""Seconds after it, until the recording begins again, so that it does not interrupt the answer."""
INHERITED: Final = ("VIRTUAL_ENV", "PYTHONPATH", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PIP_CACHE_DIR")
"""Variables of whoever runs this that a newcomer does not have."""
_CLONE_SECONDS: Final = 60
_SERVE_SECONDS: Final = 900
_LAST_CHARACTERS: Final = 2000
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
PLAYED: Final = """async () => {
  let energy = 0;
  for (const receiver of window.call?.getReceivers() ?? []) {
    for (const report of (await receiver.getStats()).values()) energy += report.totalAudioEnergy ?? 0;
  }
  return energy;
}"""
"""Energy of the sound that the browser has played; the ``audioLevel`` of a source is null where, as here, RTP packets
do not carry it."""
SILENT: Final = 1e-4
"""Energy that no minute of silence has, and the first 20 ms of a word do."""


def main() -> int:
    if why := missing(speech=True):
        print(f"not measured: {why}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # of a time limit: what was begun is ended
    with tempfile.TemporaryDirectory() as folder:
        began = time.time()
        measure(Path(folder))
        print(f"{time.time() - began:7.1f} s  in all, with empty caches, on {describe_machine()['cpu']}", flush=True)
    return 0


def measure(folder: Path) -> None:
    """Prints how long each stage took, at its end. Errors say in which one."""
    clone = folder / "stentor"
    with _stage("git clone"):
        subprocess.run(["git", "clone", "-q", f"file://{ROOT}", str(clone)], check=True, timeout=_CLONE_SECONDS)
    environment = {name: value for name, value in os.environ.items() if name not in INHERITED}
    environment["XDG_CACHE_HOME"] = str(folder / "cache")
    with closing(hold_port()) as held:
        server = Launched(held.getsockname()[1])
        began = time.time()
        try:
            with _stage(f"{' '.join(COMMAND)} {ARGUMENTS}: packages, models, native code, a start"):
                server.launch([*COMMAND, f"{ARGUMENTS} --port {server.port}"], cwd=clone, env=environment)
                server.wait_until("/health", _SERVE_SECONDS)
            print(f"           of these {(clone / '.venv' / '.stamp').stat().st_mtime - began:.1f} s for packages")
            _ask(f"http://127.0.0.1:{server.port}", folder)
        except BaseException as error:
            error.add_note(server.output()[-_LAST_CHARACTERS:])
            raise
        finally:
            server.end()


def _ask(address: str, folder: Path) -> None:
    with _stage("a recording of the question"):
        sound = folder / "question.wav"
        sound.write_bytes(spoken(address, QUESTION, before=LISTENS_AFTER, after=SILENCE))
    with ExitStack() as opened:
        with _stage("a browser, the page"):
            browser = opened.enter_context(browsing(sound))
            page = opened.enter_context(visiting(browser, f"{address}/#voice", script=KEEP_CALL))
            page.locator("#status", has_text=" at 127.0.0.1").wait_for()
        with _stage("the microphone, the question, the first sound of its answer"):
            page.click("#voice-start")
            page.locator("#voice-messages .user .said", has_text="France").wait_for()
            _wait_for_sound(page)


def _wait_for_sound(page: "Page") -> None:
    deadline = time.monotonic() + MILLISECONDS / 1000
    while (energy := page.evaluate(PLAYED)) < SILENT:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no answer was heard within {MILLISECONDS / 1000:.0f} s: the energy was {energy:.1g}")
        page.wait_for_timeout(_POLL_MS)


@contextmanager
def _stage(name: str) -> Iterator[None]:
    began = time.time()
    try:
        yield
    except BaseException as error:
        error.add_note(f"after {time.time() - began:.1f} s in the stage: {name}")
        raise
    print(f"{time.time() - began:7.1f} s  {name}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
