"""Texts a second: through our server, and by sentence-transformers in process, in turn.

Both have loaded the same weights before the first round. A round that does not count goes before the others; in it each
side finds the batch that suits it best.
"""

import base64
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Final

import msgspec
import numpy as np

from stentor.engine.loading.download.hub import DEMO_EMBEDDING_MODEL, resolve_model

from ..peers.libraries import (
    OURS,
    Load,
    Rounds,
    Side,
    Timed,
    embedder,
    run_rounds,
    sentence_transformers,
    timed_fields,
)
from ..peers.prompts import Words
from ..server_process import ServerProcess

LENGTHS: Final = (16, 64, 256)
MIXED: Final = "mixed"
CONNECTIONS: Final = 4
BATCHES: Final[dict[str, tuple[int, ...]]] = {OURS: (32, 128), "sentence-transformers": (8, 16, 32, 64)}
"""Sizes that each side tries: of its requests, of what the model gets at a time."""
MEDIAN_TOKENS: Final = 24
"""Of mixed lengths, as the next two; their mean is about :data:`_MEAN_TOKENS`."""
LEAST_TOKENS: Final = 4
MOST_TOKENS: Final = 256
_MEAN_TOKENS: Final = 38


class TimedTexts(Timed, frozen=True, kw_only=True):
    """``load`` is the tokens of every text, or ``mixed``; ``size`` the best batch that it tried."""

    dtype: str
    texts: int
    tokens: int
    texts_per_s: float
    """Median."""
    least_cosine: float
    """Of its vectors to ours."""


class Speed(msgspec.Struct, frozen=True):
    model: str
    connections: int
    peer_version: str
    rounds: int
    timed: list[TimedTexts]

    def lines(self) -> list[str]:
        return [
            f"{one.side:<22} {one.dtype:<9} {one.load:>5}  {one.texts_per_s:8.1f} texts/s (batch {one.size})  "
            f"{one.ratio:5.2f} times ours, CPU {one.cpu_ratio:5.2f}"
            for one in self.timed
        ]


def measure(dtypes: Sequence[str], rounds: int, tokens: int, threads: int, *, peer: bool = True) -> Speed:
    """``tokens`` a load, about. Raises :class:`..tool.ToolError` where the peer is not installed."""
    folder = resolve_model(DEMO_EMBEDDING_MODEL)
    words, lengths = Words(folder), lengths_of(tokens)
    # the texts of two rounds differ, their lengths do not
    loads = [{name: words.texts(each, number) for name, each in lengths.items()} for number in range(rounds + 1)]
    counts = {name: sum(each) for name, each in lengths.items()}
    timed, version = [], ""
    for dtype in dtypes:
        with ExitStack() as at_end:
            arguments = [DEMO_EMBEDDING_MODEL, "--embedding-dtype", dtype, "--threads", str(threads)]
            server = at_end.enter_context(ServerProcess(arguments))
            sides = [embedder(server, DEMO_EMBEDDING_MODEL, CONNECTIONS)]
            if peer:
                sides.append(at_end.enter_context(sentence_transformers(folder, dtype, threads)))
                version = sides[-1].version
            batches = best_batches(sides, loads[0])
            timed += summary(run_rounds(sides, loads[1:], lambda *at: batches[at]), batches, dtype, counts)  # noqa: B023
    return Speed(DEMO_EMBEDDING_MODEL, CONNECTIONS, version, rounds, timed)


def lengths_of(tokens: int) -> dict[str, list[int]]:
    """The texts that every side gets in one round, by the load's name: ``tokens`` in all, about."""
    equal = {str(length): [length] * max(1, tokens // length) for length in LENGTHS}
    return {**equal, MIXED: skewed(max(1, tokens // _MEAN_TOKENS), seed=MEDIAN_TOKENS)}


def skewed(count: int, seed: int) -> list[int]:
    """Lengths in tokens as people's texts have them: most are sentences, one in ten is some paragraphs."""
    chance = random.Random(seed)
    drawn = (round(chance.lognormvariate(math.log(MEDIAN_TOKENS), 1.0)) for _ in range(count))
    return [min(max(length, LEAST_TOKENS), MOST_TOKENS) for length in drawn]


def best_batches(sides: Sequence[Side], loads: Mapping[str, Load]) -> dict[tuple[str, str], int]:
    """Of each side under each load, the faster the better; every size is tried twice, in turn."""
    best: dict[tuple[str, str], int] = {}
    for name, load in loads.items():
        half = load[: len(load) // 2 or 1]
        for side in sides:
            tried = [(side.run(half, batch).seconds, batch) for batch in BATCHES[side.name] * 2]
            best[side.name, name] = min(tried)[1]
    return best


def summary(
    rounds: Rounds, batches: Mapping[tuple[str, str], int], dtype: str, tokens: Mapping[str, int]
) -> list[TimedTexts]:
    """``tokens`` of one round of each load."""
    timed = []
    for (side, load), done in rounds.items():
        count = len(done[0].made)
        pairs = zip(done, rounds[OURS, load], strict=True)
        timed.append(
            TimedTexts(
                dtype=dtype,
                texts=count,
                tokens=tokens[load],
                texts_per_s=round(statistics.median(count / one.seconds for one in done), 2),
                least_cosine=round(min(least_cosine(theirs.made, own.made) for theirs, own in pairs), 6),
                **timed_fields(rounds, side, load, batches[side, load]),
            )
        )
    return timed


def least_cosine(some: Sequence[str], others: Sequence[str]) -> float:
    """Between vectors of the same text, each in base64 of float32."""
    one, other = (np.array([np.frombuffer(base64.b64decode(each), np.float32) for each in side])
                  for side in (some, others))  # fmt: skip
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return float(((one * other).sum(1) / lengths).min())
