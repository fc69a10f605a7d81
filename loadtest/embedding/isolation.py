"""Time between the tokens of a chat stream: alone, beside a job of texts, beside files that are heard without end.

All three models have one device and equal shares of its time.
"""

import asyncio
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Final

import msgspec

from stentor.engine.loading.hub import (
    DEFAULT_MODEL,
    DEMO_EMBEDDING_MODEL,
    DEMO_TRANSCRIPTION_MODEL,
    resolve_model,
)

from ..client import STREAMED, complete
from ..record import Spread
from ..server_process import ServerProcess
from ..serving.measure import spread
from ..voice.clips import joined, spoken
from ..voice.sentences import SENTENCES
from ..voice.sides import Ours as Transcriber
from .asking import Bulk
from .texts import Texts, skewed

ALONE: Final = "alone"
EMBEDDING: Final = "beside a job of texts"
TRANSCRIPTION: Final = "beside transcription"
JOB_TEXTS: Final = 256
"""Of one request; two are on their way at a time."""
_PROMPT: Final = "Once upon a time, in a house by the sea,"
_SENTENCES_A_FILE: Final = 8
_STEP: Final = 7
"""Sentences between the beginnings of two files."""
_LEAD_SECONDS: Final = 0.03
"""Of silence, more in every file: the server keeps what it has made of one that comes again."""


class Beside(msgspec.Struct, frozen=True):
    """Chat in one company."""

    company: str
    itl: Spread
    """Milliseconds between reads that brought tokens, over all rounds."""
    p99_ratio: float
    """To that alone."""
    p50_ratio: float
    streams: int
    company_done: int
    """Texts or files, meanwhile."""


class Isolation(msgspec.Struct, frozen=True):
    server: list[str]
    rounds: int
    tokens: int
    """Of one stream."""
    results: list[Beside]


class Counted:
    """How much somebody has done."""

    def __init__(self, done: Callable[[], int] = lambda: 0) -> None:
        self.done = done


def measure(rounds: int, tokens: int, threads: int, *, transcription: bool = True) -> Isolation:
    """A stream in each company in turn, ``rounds`` times, after one that does not count."""
    arguments = [DEFAULT_MODEL, "--embedding-model", DEMO_EMBEDDING_MODEL, "--threads", str(threads)]
    arguments += ["--transcription-model", DEMO_TRANSCRIPTION_MODEL] if transcription else []
    job = Texts(resolve_model(DEMO_EMBEDDING_MODEL)).of(skewed(JOB_TEXTS, seed=3), seed=3)
    gaps: dict[str, list[float]] = {}
    done: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as scratch, ServerProcess(arguments) as server:
        files = _files(Path(scratch))
        companies: dict[str, Callable[[], AbstractContextManager[Counted]]] = {
            ALONE: lambda: nullcontext(Counted()),
            EMBEDDING: lambda: _texts(server, job),
        }
        if transcription:
            companies[TRANSCRIPTION] = lambda: _transcription(server, files)
        for number in range(rounds + 1):
            for company, start in companies.items():
                with start() as counted:
                    found = asyncio.run(stream_gaps(server.port, tokens))
                    if number:
                        gaps.setdefault(company, []).extend(found)
                        done[company] = done.get(company, 0) + counted.done()
                print(f"{number} chat {company:<22} p99 {spread(found).p99:.1f} ms", flush=True)
    return Isolation(arguments, rounds, tokens, summary(gaps, done, rounds))


async def stream_gaps(port: int, tokens: int) -> list[float]:
    """Seconds between the reads that brought output."""
    fields = {"model": DEFAULT_MODEL, "prompt": _PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    answer = await complete(port, {**STREAMED, **fields})
    if answer.tokens != tokens:
        raise RuntimeError(f"the stream had {answer.tokens} tokens, expected {tokens}")
    return answer.gaps


def summary(gaps: dict[str, list[float]], done: dict[str, int], streams: int) -> list[Beside]:
    alone = spread(gaps[ALONE])
    results = []
    for company, found in gaps.items():
        here = spread(found)
        ratios = (round(here.p99 / alone.p99, 2), round(here.p50 / alone.p50, 2))
        results.append(Beside(company, here, *ratios, streams, done[company]))
    return results


@contextmanager
def _texts(server: ServerProcess, job: Sequence[str]) -> Iterator[Counted]:
    with Bulk(server.port, DEMO_EMBEDDING_MODEL, [job, job], endless=True) as bulk:
        yield Counted(lambda: bulk.texts)


@contextmanager
def _transcription(server: ServerProcess, files: Iterator[Path]) -> Iterator[Counted]:
    """One file after the other; the last one is waited for."""
    side = Transcriber(server)
    ending = threading.Event()
    heard: list[str] = []
    failed: list[Exception] = []

    def work() -> None:
        try:
            while not ending.is_set():
                heard.extend(side.transcribe([next(files)], parallel=1).texts)
        except Exception as error:  # of whatever kind: told where it can be raised
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield Counted(lambda: len(heard))
    finally:
        ending.set()
        thread.join()
    if failed:
        raise failed[0]


def _files(folder: Path) -> Iterator[Path]:
    """About half a minute of speech each, no two the same."""
    clips = spoken(SENTENCES)
    number = 0
    while True:
        begin = number * _STEP % (len(clips) - _SENTENCES_A_FILE + 1)
        chosen = clips[begin : begin + _SENTENCES_A_FILE]
        yield joined(chosen, folder / f"{number}.wav", _LEAD_SECONDS * number).path
        number += 1
