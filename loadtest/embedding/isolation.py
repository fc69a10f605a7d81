"""How models on one device slow each other: a sentence beside a job of texts, a chat stream beside a job or files."""

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event, Lock
from typing import Final, Self

import msgspec

from stentor.engine.loading.download.hub import (
    DEFAULT_MODEL,
    DEMO_EMBEDDING_MODEL,
    DEMO_TRANSCRIPTION_MODEL,
    resolve_model,
)

from ..client import STREAMED, complete
from ..peers.libraries import connect, transcriber, vectors_of
from ..peers.prompts import Words
from ..record import Spread
from ..server_process import ServerProcess
from ..serving.measure import spread
from ..tool import ToolError
from ..voice.clips import SENTENCES, half_minute, spoken
from .speed import skewed

ALONE: Final = "alone"
EMBEDDING: Final = "beside a job of texts"
TRANSCRIPTION: Final = "beside transcription"
JOB_TEXTS: Final = 256
"""Of one request; two are on their way at a time."""
SHORT_TOKENS: Final = 16
MOST_TEXTS: Final = 2048
"""Of one request of a job that a sentence is sent beside."""
_PAUSE: Final = 0.03
"""Seconds between an answer and the next sentence."""
_PROMPT: Final = "Once upon a time, in a house by the sea,"


class Latency(msgspec.Struct, frozen=True):
    """Milliseconds, of one sentence at a time."""

    model: str
    server: list[str]
    alone: Spread
    beside_a_job: Spread
    job_texts: int
    job_tokens: int
    job_seconds: float

    def lines(self) -> list[str]:
        spreads = (("alone", self.alone), (f"beside {self.job_texts} texts", self.beside_a_job))
        return [f"one sentence {name:<22} p50 {one.p50:.1f} ms, p99 {one.p99:.1f} ms, of {one.count}"
                for name, one in spreads]  # fmt: skip


class Beside(msgspec.Struct, frozen=True):
    """Chat in one company."""

    company: str
    itl: Spread
    """Milliseconds between reads that brought tokens, over all rounds."""
    p99_ratio: float
    """To that alone."""
    p50_ratio: float
    company_done: int
    """Texts or files, meanwhile."""


class Isolation(msgspec.Struct, frozen=True):
    server: list[str]
    rounds: int
    tokens: int
    """Of one stream."""
    results: list[Beside]

    def lines(self) -> list[str]:
        return [
            f"chat {one.company:<22} p50 {one.itl.p50:.1f} ms, p99 {one.itl.p99:.1f} ms, {one.p99_ratio:.2f} times; "
            f"{one.company_done} done beside it"
            for one in self.results
        ]


def measure_latency(job_texts: int, alone: int, threads: int) -> Latency:
    """``alone`` sentences, then a job with sentences for as long as it takes, its requests all sent at once."""
    words, lengths = Words(resolve_model(DEMO_EMBEDDING_MODEL)), skewed(job_texts, seed=1)
    job, sentences = words.texts(lengths, seed=1), words.texts([SHORT_TOKENS] * 64, seed=2)
    arguments = [DEMO_EMBEDDING_MODEL, "--threads", str(threads)]
    with ServerProcess(arguments) as server, closing(connect(server.port)) as connection:
        ask = partial(vectors_of, DEMO_EMBEDDING_MODEL, connection)
        probe(ask, sentences, lambda asked: asked < len(sentences))
        quiet = probe(ask, sentences, lambda asked: asked < alone)
        began = time.perf_counter()
        parts = [job[start : start + MOST_TEXTS] for start in range(0, len(job), MOST_TEXTS)]
        with Company([partial(_job, server, part) for part in parts]) as company:
            busy = probe(ask, sentences, lambda _: company.running)
            seconds = time.perf_counter() - began
    found = spread(quiet), spread(busy), company.done, sum(lengths), seconds
    return Latency(DEMO_EMBEDDING_MODEL, arguments, *found)


def probe(
    ask: Callable[[Sequence[str]], object], sentences: Sequence[str], go_on: Callable[[int], bool]
) -> list[float]:
    """Seconds of each request; ``go_on`` is asked after each, with how many there were. The last is left out where
    it is not the only one: what it waited for may have ended before it.
    """
    found: list[float] = []
    while True:
        began = time.perf_counter()
        ask([sentences[len(found) % len(sentences)]])
        found.append(time.perf_counter() - began)
        if not go_on(len(found)):
            return found[:-1] or found
        time.sleep(_PAUSE)


def _job(server: ServerProcess, texts: Sequence[str]) -> int:
    """Sends the texts in one request; returns how many vectors came."""
    with closing(connect(server.port)) as connection:
        return len(vectors_of(DEMO_EMBEDDING_MODEL, connection, texts))


def measure(rounds: int, tokens: int, threads: int, *, transcription: bool = True) -> Isolation:
    """A chat stream in each company in turn, ``rounds`` times, after one that does not count. All three models have
    one device and equal shares of its time."""
    arguments = [DEFAULT_MODEL, "--embedding-model", DEMO_EMBEDDING_MODEL, "--threads", str(threads)]
    arguments += ["--transcription-model", DEMO_TRANSCRIPTION_MODEL] if transcription else []
    job = Words(resolve_model(DEMO_EMBEDDING_MODEL)).texts(skewed(JOB_TEXTS, seed=3), seed=3)
    gaps: dict[str, list[float]] = {}
    done: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as scratch, ServerProcess(arguments) as server:
        companies: dict[str, list[Callable[[], int]]] = {ALONE: [], EMBEDDING: [partial(_job, server, job)] * 2}
        if transcription:
            files, side = _files(Path(scratch)), transcriber(server)
            companies[TRANSCRIPTION] = [lambda: len(side.run([next(files)], 1).made)]
        for number in range(rounds + 1):
            for name, works in companies.items():
                with Company(works, endless=True) as company:
                    found = asyncio.run(stream_gaps(server.port, tokens))
                    made = company.done
                if number:
                    gaps.setdefault(name, []).extend(found)
                    done[name] = done.get(name, 0) + made
                print(f"{number} chat {name:<22} p99 {spread(found).p99:.1f} ms", flush=True)
    return Isolation(arguments, rounds, tokens, summary(gaps, done))


async def stream_gaps(port: int, tokens: int) -> list[float]:
    """Seconds between the reads that brought output."""
    fields = {"model": DEFAULT_MODEL, "prompt": _PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    answer = await complete(port, {**STREAMED, **fields})
    if answer.tokens != tokens:
        raise ToolError(f"the stream had {answer.tokens} tokens, expected {tokens}")
    return answer.gaps


def summary(gaps: dict[str, list[float]], done: dict[str, int]) -> list[Beside]:
    spreads = {name: spread(found) for name, found in gaps.items()}
    alone = spreads[ALONE]
    return [
        Beside(name, here, round(here.p99 / alone.p99, 2), round(here.p50 / alone.p50, 2), done[name])
        for name, here in spreads.items()
    ]


def _files(folder: Path) -> Iterator[str]:
    """About half a minute of speech each, no two the same: the server keeps what it has made of one."""
    clips = spoken(SENTENCES)
    for number in count():
        yield str(half_minute(clips, number, number, folder / f"{number}.wav").path)


class Company:
    """Context manager: work on threads of its own while something else is measured.

    ``endless`` repeats each piece of work until the block ends, which waits for what runs then. Leaving raises what a
    piece of work raised.
    """

    def __init__(self, works: Sequence[Callable[[], int]], *, endless: bool = False) -> None:
        """Each returns how many texts or files it has done."""
        self._works = works
        self._endless = endless
        self._ending = Event()
        self._lock = Lock()
        self.done = 0

    @property
    def running(self) -> bool:
        return any(not future.done() for future in self._futures)

    def __enter__(self) -> Self:
        self._threads = ThreadPoolExecutor(len(self._works) or 1)
        self._futures = [self._threads.submit(self._repeat, work) for work in self._works]
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._ending.set()
        self._threads.shutdown()
        for future in self._futures if error is None else []:
            future.result()

    def _repeat(self, work: Callable[[], int]) -> None:
        for _ in count() if self._endless else range(1):
            if self._ending.is_set():
                return
            made = work()
            with self._lock:
                self.done += made
