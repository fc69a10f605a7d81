"""Prose cut into texts of so many tokens: windows that begin and end anywhere in the pages of the quality check."""

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

from ..quality.corpus import corpus

MEDIAN_TOKENS: Final = 24
LEAST_TOKENS: Final = 4
MOST_TOKENS: Final = 256
_SPREAD: Final = 1.0
"""Standard deviation of the logarithm: most texts are sentences, one in ten is some paragraphs."""
_TRIES: Final = 1000


class Texts:
    """Cuts texts as a model's tokenizer counts them."""

    def __init__(self, model: Path) -> None:
        """``model`` is a folder with a ``tokenizer.json``."""
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._special = self._tokenizer.num_special_tokens_to_add(False)
        self._prose = corpus()
        read = self._tokenizer.encode(self._prose, add_special_tokens=False)
        self._spans: list[tuple[int, int]] = read.offsets
        words = read.word_ids
        self._starts = [at for at in range(len(words)) if not at or words[at] != words[at - 1]]

    def of(self, lengths: Sequence[int], seed: int) -> list[str]:
        """A text of every length, in tokens with those that the model adds. Raises ``ValueError`` where none can be."""
        chance = random.Random(seed)
        return [self._cut(length, chance) for length in lengths]

    def count(self, text: str) -> int:
        """Tokens, with those that the model adds."""
        return len(self._tokenizer.encode(text).ids)

    def _cut(self, length: int, chance: random.Random) -> str:
        own = length - self._special
        if own >= 1:
            for _ in range(_TRIES):
                start = chance.choice(self._starts)
                if start + own <= len(self._spans):
                    text = self._prose[self._spans[start][0] : self._spans[start + own - 1][1]]
                    if self.count(text) == length:  # a word that is cut may be read as other tokens
                        return text
        raise ValueError(f"no text of {length} tokens can be cut from {len(self._spans)}")


def skewed(count: int, seed: int) -> list[int]:
    """Lengths in tokens as people's texts have them: many short, few long."""
    chance = random.Random(seed)
    drawn = (round(chance.lognormvariate(math.log(MEDIAN_TOKENS), _SPREAD)) for _ in range(count))
    return [min(max(length, LEAST_TOKENS), MOST_TOKENS) for length in drawn]
