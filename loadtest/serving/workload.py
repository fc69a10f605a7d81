"""What is asked: sessions of one turn or more, made up from a seed.

A session is a function of (seed, number) alone, so that the same seed asks the same whatever order, speed or
concurrency a run has.
"""

from enum import IntEnum
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import numpy as np

from .api import Message
from .lengths import Lengths, whole


class Turn(msgspec.Struct, frozen=True):
    """What the user says next."""

    text: str = ""
    tokens: list[int] | None = None
    output_tokens: int | None = None
    think: float = 0.0
    """Seconds between the answer before and this turn."""


class Session(msgspec.Struct, frozen=True):
    """A conversation: each turn waits for the answer to the one before, and carries it along."""

    turns: list[Turn]
    opening: list[Message] = []
    """What stands before the first turn: a system prompt, a shared prefix."""


class Workload(Protocol):
    """Where sessions come from."""

    def session(self, number: int) -> Session:
        """The session of this number, the same one each time; those below 0 warm up and are not measured."""

    def describe(self) -> dict[str, Any]:
        """Every parameter, for the record."""


class Part(IntEnum):
    """Of a run: what one part draws does not disturb the others."""

    SESSION = 0
    PREFIX = 1
    ORDER = 2
    ARRIVALS = 3
    WARMUP = 4


def generator(seed: int, part: Part, number: int = 0) -> np.random.Generator:
    """A generator for one part of the run; sessions with numbers below 0 have a part of their own."""
    if number < 0:
        part, number = Part.WARMUP, -number
    return np.random.Generator(np.random.PCG64([seed, part, number]))


class Random(msgspec.Struct, frozen=True):
    """Made-up prompts: words, or token ids where exact lengths matter.

    ``prefixes`` shared beginnings of ``prefix_tokens`` each are dealt out at random; 0 of them shares nothing. The
    prompt's own part comes after, and ``inputs`` is its length alone.
    """

    seed: int
    inputs: Lengths
    outputs: Lengths
    turns: Lengths
    think: Lengths
    prefixes: int = 0
    prefix_tokens: int = 0
    token_range: tuple[int, int] | None = None
    """Token ids to draw from, the upper one excluded; None asks in words."""

    def session(self, number: int) -> Session:
        rng = generator(self.seed, Part.SESSION, number)
        shared = generator(self.seed, Part.PREFIX, int(rng.integers(self.prefixes))) if self.prefixes else None
        turns = max(1, whole(self.turns, rng))
        if self.token_range is not None:
            low, high = self.token_range
            prefix = [] if shared is None else shared.integers(low, high, self.prefix_tokens).tolist()
            own = rng.integers(low, high, whole(self.inputs, rng)).tolist()
            return Session([Turn(tokens=prefix + own, output_tokens=whole(self.outputs, rng))])
        opening = [] if shared is None else [Message("system", random_words(shared, self.prefix_tokens))]
        return Session([self._turn(rng, index) for index in range(turns)], opening)

    def describe(self) -> dict[str, Any]:
        return {"kind": "random", **msgspec.to_builtins(self)}

    def _turn(self, rng: np.random.Generator, index: int) -> Turn:
        text = random_words(rng, whole(self.inputs, rng))
        think = self.think.draw(rng) if index else 0.0
        return Turn(text, output_tokens=whole(self.outputs, rng), think=think)


WORDS: Final = tuple((Path(__file__).parent / "words.txt").read_text(encoding="utf-8").split())
"""The commonest of English."""


def random_words(rng: np.random.Generator, count: int) -> str:
    return " ".join([WORDS[index] for index in rng.integers(0, len(WORDS), count).tolist()])
