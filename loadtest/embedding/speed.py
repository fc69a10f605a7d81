"""Texts a second: through our server, and by sentence-transformers in process, in turn.

Both have loaded the same weights before the first round and only one works at a time. Ratios are of times in the same
round, so that a machine that slows down slows both. A round that does not count goes before the others; in it each side
finds the batch that suits it best.
"""

import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Final

import msgspec
import numpy as np

from stentor.engine.loading.hub import DEMO_EMBEDDING_MODEL, resolve_model

from ..server_process import ServerProcess
from .sides import PEER, Encoded, Ours, SentenceTransformers, Side
from .texts import MEDIAN_TOKENS, Texts, skewed

LENGTHS: Final = (16, 64, 256)
MIXED: Final = "mixed"
CONNECTIONS: Final = 4
BATCHES: Final[dict[str, tuple[int, ...]]] = {Ours.name: (32, 128), PEER: (8, 16, 32, 64)}
"""Sizes that each side tries: of its requests, of what the model gets at a time."""
_MEAN_SKEWED: Final = 38
"""Tokens of a text, about."""

Load = Sequence[str]


class Timed(msgspec.Struct, frozen=True):
    """One side under one load."""

    side: str
    dtype: str
    load: str
    """Tokens of every text, or ``mixed``."""
    texts: int
    tokens: int
    batch: int
    """The best that it tried."""
    seconds: list[float]
    """Of each round."""
    texts_per_s: float
    """Median."""
    ratio: float
    """Median, over rounds, of this side's time over ours: how many times as fast ours is."""
    cpu_seconds: list[float]
    cpu_ratio: float
    """As ``ratio``, of the processor time that was used."""
    least_cosine: float
    """Of its vectors to ours."""


class Speed(msgspec.Struct, frozen=True):
    model: str
    servers: list[list[str]]
    """Arguments of each."""
    connections: int
    peer_version: str
    rounds: int
    timed: list[Timed]


def measure(dtypes: Sequence[str], rounds: int, tokens: int, threads: int, *, peer: bool = True) -> Speed:
    """``tokens`` a load, about. Raises ``RuntimeError`` where the peer is not installed."""
    folder = resolve_model(DEMO_EMBEDDING_MODEL)
    texts = Texts(folder)
    loads = [loads_of(texts, tokens, number) for number in range(rounds + 1)]
    servers, timed, version = [], [], ""
    for dtype in dtypes:
        arguments = [DEMO_EMBEDDING_MODEL, "--embedding-dtype", dtype, "--threads", str(threads)]
        with ExitStack() as at_end:
            server = at_end.enter_context(ServerProcess(arguments))
            sides: list[Side] = [Ours(server, DEMO_EMBEDDING_MODEL, CONNECTIONS)]
            if peer:
                other = at_end.enter_context(SentenceTransformers(folder, dtype, threads))
                version = other.version
                sides.append(other)
            batches = best_batches(sides, loads[0])
            found = run_rounds(sides, loads[1:], batches)
        servers.append(arguments)
        counts = {name: sum(map(texts.count, load)) for name, load in loads[-1].items()}
        timed += summary(found, batches, dtype, counts)
    return Speed(DEMO_EMBEDDING_MODEL, servers, CONNECTIONS, version, rounds, timed)


def loads_of(texts: Texts, tokens: int, number: int) -> dict[str, Load]:
    """What every side gets in one round, by name. The texts of two rounds differ, their lengths do not."""
    loads: dict[str, Load] = {
        str(length): texts.of([length] * max(1, tokens // length), seed=number) for length in LENGTHS
    }
    loads[MIXED] = texts.of(skewed(max(1, tokens // _MEAN_SKEWED), seed=MEDIAN_TOKENS), seed=number)
    return loads


def best_batches(sides: Sequence[Side], loads: Mapping[str, Load]) -> dict[tuple[str, str], int]:
    """Of each side under each load, the faster the better; every size is tried twice, in turn."""
    best: dict[tuple[str, str], int] = {}
    for name, load in loads.items():
        half = load[: len(load) // 2 or 1]
        for side in sides:
            tried: dict[int, list[float]] = {}
            for batch in BATCHES[side.name] * 2:
                tried.setdefault(batch, []).append(side.encode(half, batch).seconds)
            best[side.name, name] = min(tried, key=lambda batch: min(tried[batch]))
    return best


Rounds = Mapping[tuple[str, str], Sequence[Encoded]]
"""What came of each round, by side and load."""


def run_rounds(
    sides: Sequence[Side], rounds: Sequence[Mapping[str, Load]], batches: Mapping[tuple[str, str], int]
) -> Rounds:
    """Every side under every load, in turn."""
    found: dict[tuple[str, str], list[Encoded]] = {}
    for number, loads in enumerate(rounds, 1):
        for name, load in loads.items():
            for side in sides:
                done = side.encode(load, batches[side.name, name])
                print(f"{number} {side.name:<22} {name:>5}  {len(load) / done.seconds:7.1f} texts/s", flush=True)
                found.setdefault((side.name, name), []).append(done)
    return found


def summary(
    rounds: Rounds, batches: Mapping[tuple[str, str], int], dtype: str, tokens: Mapping[str, int]
) -> list[Timed]:
    """``tokens`` of one round of each load."""
    timed = []
    for (side, load), done in rounds.items():
        ours = rounds[Ours.name, load]
        pairs = list(zip(done, ours, strict=True))
        count = len(done[0].vectors)
        timed.append(
            Timed(
                side,
                dtype,
                load,
                count,
                tokens[load],
                batches[side, load],
                [round(one.seconds, 4) for one in done],
                round(statistics.median(count / one.seconds for one in done), 2),
                round(statistics.median(theirs.seconds / own.seconds for theirs, own in pairs), 3),
                [round(one.cpu_seconds, 2) for one in done],
                round(statistics.median(theirs.cpu_seconds / max(own.cpu_seconds, 0.01) for theirs, own in pairs), 3),
                round(min(least_cosine(theirs.vectors, own.vectors) for theirs, own in pairs), 6),
            )
        )
    return timed


def least_cosine(some: Sequence[bytes], others: Sequence[bytes]) -> float:
    """Between vectors of the same text."""
    one, other = (np.frombuffer(b"".join(side), np.float32).reshape(len(side), -1) for side in (some, others))
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return float(((one * other).sum(1) / lengths).min())
