"""Word error rate: words that were put in, left out or heard as others, over those that were said."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class WordErrors:
    errors: int
    words: int

    @property
    def rate(self) -> float:
        return self.errors / max(1, self.words)

    def __add__(self, other: "WordErrors") -> "WordErrors":
        return WordErrors(self.errors + other.errors, self.words + other.words)


class Normalizer:
    """Texts without case, punctuation and the ways to write a number: Whisper's own, as transformers has it."""

    def __init__(self) -> None:
        from transformers.models.whisper.english_normalizer import EnglishTextNormalizer  # late: it takes a second

        self._normalize: Any = EnglishTextNormalizer({})

    def words(self, text: str) -> list[str]:
        return str(self._normalize(text)).split()


def word_errors(said: Sequence[str], heard: Sequence[str]) -> WordErrors:
    """The fewest changes that make ``heard`` of ``said``."""
    costs = list(range(len(heard) + 1))
    for place, word in enumerate(said, 1):
        before, costs[0] = costs[0], place
        for column, other in enumerate(heard, 1):
            best = min(before + (word != other), costs[column] + 1, costs[column - 1] + 1)
            before, costs[column] = costs[column], best
    return WordErrors(costs[-1], len(said))
