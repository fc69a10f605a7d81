"""One question to two servers, of this machine and emulated: float32, greedy, the demo model."""

import os
import sys
from pathlib import Path
from typing import Final

import httpx

from stentor.engine.loading.download.hub import DEFAULT_MODEL, resolve_model
from stentor.loadtest.server_process import HOST, Launched, StartFailed, hold_port

from .files import ROOT

QUESTION: Final = "Name three rivers of Europe, and the seas that they reach."
TOKENS: Final = 32
SECONDS: Final = 7200.0
"""For a start, and for an answer: an emulated one of either takes minutes."""
SERVE: Final = (
    *("--dtype", "float32", "--max-model-len", "256", "--max-num-seqs", "2", "--kv-cache-memory", "32MiB"),
    *("--threads", "1", "--step-timeout", "0", "--host", HOST),
)


class Differs(Exception):
    """There is no answer, or another one."""


def compare_answers(python: Path) -> str:
    """The answer that both give. Raises :class:`Differs`."""
    model = str(resolve_model(DEFAULT_MODEL))
    here, there = (_answer(each, model) for each in (sys.executable, str(python)))
    if here != there:
        raise Differs(f"this machine says {here!r}, and AArch64 {there!r}")
    return f"both say {here!r}"


def _answer(python: str, model: str) -> str:
    with hold_port() as held:
        server = Launched(held.getsockname()[1])
        command = [python, "-P", "-m", "stentor.server.main.cli", "serve", model, *SERVE, "--port", str(server.port)]
        server.launch(command, cwd=ROOT, env=os.environ)
        try:
            ready = server.wait_until("/health", SECONDS)
            asked = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": TOKENS}
            url = f"http://{HOST}:{server.port}/v1/chat/completions"
            answer = httpx.post(url, json=asked, timeout=SECONDS)
            print(
                f"{Path(python).parent}: ready after {ready:.0f} s, answered in {answer.elapsed.total_seconds():.0f} s"
            )
            return str(answer.raise_for_status().json()["choices"][0]["message"]["content"])
        except (StartFailed, httpx.HTTPError) as error:
            raise Differs(f"{python}: {error}\n{server.output()}") from error
        finally:
            server.end()
