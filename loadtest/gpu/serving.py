"""A real server on the GPU: that it answers, goes on when its worker is killed, and what its clients wait for.

    python -m stentor.loadtest.gpu.serving load check --weights SmolLM2.gguf
    python -m stentor.loadtest.gpu.serving load --model loadtest/configs/llama-3.1-8b

``load`` serves a model with made-up weights and a made-up vocabulary, at 1, 64 and 256 streams.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from ..client import STREAMED, Answer, complete, seconds_of
from ..processes import named
from ..record import quantile
from ..seeing_model import made_up_tokenizer
from ..series import CONFIGS
from ..server_process import ServerProcess
from . import rows

_NAME: Final = "gpu"
_QUESTION: Final = "The capital of France is"
_RIGHT: Final = "Paris"
"""What is in the answer of weights that are not made up."""
_WORDS: Final = 128
"""Tokens in and out of each request of a load."""
_STREAMS: Final = (1, 64, 256)
_ALL_CAPTURED: Final = "CUDA graphs captured in"
"""What the worker's log says then."""
_MOST_CAPTURING: Final = 60.0
_KILLED_AT: Final = 20
"""Tokens of a stream after which its worker is killed."""


def write_model(folder: Path, config: Path) -> None:
    """A folder to be served with ``--load-format dummy``: ``config``'s numbers, and a tokenizer as large."""
    shutil.copy(config / "config.json", folder / "config.json")
    numbers = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "tokenizer.json").write_text(json.dumps(made_up_tokenizer(numbers["vocab_size"], {})))
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))


def body(prompt: str | Sequence[int], tokens: int, **more: object) -> dict[str, object]:
    return {"model": _NAME, "prompt": prompt, "max_tokens": tokens, "temperature": 0.0, **STREAMED, **more}


def check(server: ServerProcess) -> Iterator[Mapping[str, Any]]:
    """Asks for text, then for a long one again with the worker killed in its middle."""
    began = time.perf_counter()
    answer = _ask(server, _QUESTION, 32)
    yield {"question": _QUESTION, "answer": answer, "right": _RIGHT in answer, "seconds": time.perf_counter() - began}
    whole = _ask(server, _QUESTION, 300, ignore_eos=True)
    killed, pause = asyncio.run(_killed(server))
    yield {"same text after a kill": killed == whole, "pause, s": pause, "whole": whole, "killed": killed}


def _ask(server: ServerProcess, prompt: str, tokens: int, **more: object) -> str:
    import httpx  # late: only this check needs it

    sent = {**body(prompt, tokens, **more), "stream": False}
    sent.pop("stream_options")
    answer = httpx.post(f"http://127.0.0.1:{server.port}/v1/completions", json=sent, timeout=100)
    return str(answer.json()["choices"][0]["text"]) if answer.is_success else f"{answer.status_code}: {answer.text}"


async def _killed(server: ServerProcess) -> tuple[str, float]:
    """The text of a stream whose worker is killed, and its longest pause in seconds."""
    import httpx

    text, arrivals = "", list[float]()
    address = f"http://127.0.0.1:{server.port}/v1/completions"
    async with (
        httpx.AsyncClient(timeout=100) as client,
        client.stream("POST", address, json=body(_QUESTION, 300, ignore_eos=True)) as answer,
    ):
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                return f"error: {event}", 0.0
            text += "".join(choice["text"] for choice in event["choices"])
            arrivals.append(time.perf_counter())
            if len(arrivals) == _KILLED_AT:
                (pid,) = named(server.pid, "stentor-worker")
                os.kill(pid, signal.SIGKILL)
    return text, max(later - earlier for earlier, later in pairwise(arrivals))


async def _load(server: ServerProcess, streams: int, seed: int) -> list[Answer]:
    """So many requests at once, with prompts of their own."""
    prompts = [
        [1000 + (seed * 7919 + row * 131 + place * 17) % 20000 for place in range(_WORDS)] for row in range(streams)
    ]
    return await asyncio.gather(*(complete(server.port, body(prompt, _WORDS, ignore_eos=True)) for prompt in prompts))


def _captured(server: ServerProcess) -> float:
    """Seconds until the last graph is captured, which happens while the server serves: until then steps run eagerly."""
    began = time.perf_counter()
    while _ALL_CAPTURED not in server.output() and time.perf_counter() - began < _MOST_CAPTURING:
        time.sleep(0.1)
    return round(time.perf_counter() - began, 1)


def load(server: ServerProcess) -> Iterator[Mapping[str, Any]]:
    """Tokens a second and what clients wait for, in the second of two bursts of each number of streams."""
    yield {"seconds until all graphs are captured": _captured(server)}
    for streams in _STREAMS:
        asyncio.run(_load(server, streams, 2 * streams))
        answers = asyncio.run(_load(server, streams, 2 * streams + 1))
        ttft = [answer.ttft for answer in answers]
        gaps = [gap for answer in answers for gap in answer.gaps]
        yield {
            "streams": streams,
            "output tokens/s": round(sum(answer.tokens for answer in answers) / seconds_of(answers), 1),
            "TTFT p50, ms": round(1e3 * quantile(ttft, 0.5), 2),
            "TTFT max, ms": round(1e3 * max(ttft), 2),
            "ITL p50, ms": round(1e3 * quantile(gaps, 0.5), 3),
            "ITL p99, ms": round(1e3 * quantile(gaps, 0.99), 3),
        }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="stentor.loadtest.gpu.serving", description=__doc__)
    parser.add_argument("what", nargs="+", choices=("check", "load"))
    parser.add_argument("--weights", type=Path, help="a GGUF file; otherwise weights are made up")
    parser.add_argument("--model", type=Path, default=CONFIGS / "llama-3.1-8b", help="a folder with config.json")
    parser.add_argument("--rows", type=Path, default=Path("rows.jsonl"), help="figures are added here")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch-invariant", action="store_true", help="serve so that the text after a kill is exact")
    return parser


def main(argv: Sequence[str]) -> int:
    given = _parser().parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        if given.weights is not None:
            model, options = str(given.weights), list[str]()
        else:
            write_model(Path(folder), given.model)
            model, options = folder, ["--load-format", "dummy"]
        name = (given.weights or given.model).name
        if given.batch_invariant:
            options.append("--batch-invariant")
            name += ", batch-invariant"
        options += ["--device", given.device, "--served-model-name", _NAME, "--max-model-len", "2048"]
        with ServerProcess([model, *options]) as server:
            rows.append(given.rows, {"server": name, "seconds to ready": round(server.seconds_to_ready, 2)})
            for what in given.what:
                for found in check(server) if what == "check" else load(server):
                    rows.append(given.rows, {"server": name, **found})
                    print(found, flush=True)
            print(server.output()[-8000:])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
