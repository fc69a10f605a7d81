"""How long one short sentence takes alone, and while somebody else has thousands of texts in the same server."""

import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from stentor.engine.loading.hub import DEMO_EMBEDDING_MODEL, resolve_model

from ..record import Spread
from ..server_process import ServerProcess
from ..serving.measure import spread
from .asking import Bulk, Connection
from .texts import Texts, skewed

SHORT_TOKENS: Final = 16
MOST_TEXTS: Final = 2048
"""Of one request."""
_PAUSE: Final = 0.03
"""Seconds between an answer and the next sentence."""


class Latency(msgspec.Struct, frozen=True):
    """Milliseconds, of one sentence at a time."""

    model: str
    server: list[str]
    alone: Spread
    beside_a_job: Spread
    job_texts: int
    job_tokens: int
    job_seconds: float


def measure(job_texts: int, alone: int, threads: int) -> Latency:
    """``alone`` sentences, then a job with sentences for as long as it takes, its requests all sent at once."""
    texts = Texts(resolve_model(DEMO_EMBEDDING_MODEL))
    job = texts.of(skewed(job_texts, seed=1), seed=1)
    sentences = texts.of([SHORT_TOKENS] * 64, seed=2)
    arguments = [DEMO_EMBEDDING_MODEL, "--threads", str(threads)]
    parts = [job[start : start + MOST_TEXTS] for start in range(0, len(job), MOST_TEXTS)]
    with ServerProcess(arguments) as server, Connection(server.port, DEMO_EMBEDDING_MODEL) as connection:
        probe(connection, sentences, lambda count: count < len(sentences))
        quiet = probe(connection, sentences, lambda count: count < alone)
        began = time.perf_counter()
        with Bulk(server.port, DEMO_EMBEDDING_MODEL, parts) as bulk:
            busy = probe(connection, sentences, lambda _: bulk.running)
            seconds = time.perf_counter() - began
        if bulk.texts != len(job):
            raise RuntimeError(f"the job made {bulk.texts} vectors, expected {len(job)}")
    tokens = sum(map(texts.count, job))
    return Latency(DEMO_EMBEDDING_MODEL, arguments, spread(quiet), spread(busy), len(job), tokens, round(seconds, 2))


def probe(connection: Connection, sentences: Sequence[str], go_on: Callable[[int], bool]) -> list[float]:
    """Seconds of each request; ``go_on`` is asked after each, with how many there were. The last is left out where
    it is not the only one: what it waited for may have ended before it.
    """
    found: list[float] = []
    while True:
        began = time.perf_counter()
        connection.ask([sentences[len(found) % len(sentences)]])
        found.append(time.perf_counter() - began)
        if not go_on(len(found)):
            return found[:-1] or found
        time.sleep(_PAUSE)
