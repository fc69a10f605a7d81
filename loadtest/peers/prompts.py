"""Random prompts that are the same for every side, as token ids and as text that encodes to as many tokens.

Some servers take no token ids. Whole words, each one token with its leading space, join into a text of exactly as
many tokens; being random, no two prompts share a prefix that a cache could use.
"""

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from .weights import WeightsError

_WORD: Final = re.compile("[Ġ▁]?([a-z]{2,})")
_FEWEST: Final = 256


class Prompt(NamedTuple):
    """One prompt in both forms."""

    ids: list[int]
    text: str


class Words:
    """The vocabulary's words that stay one token each."""

    def __init__(self, folder: Path) -> None:
        """Reads ``tokenizer.json`` in ``folder``. Raises :class:`WeightsError` where it has too few such words."""
        from tokenizers import Tokenizer  # late: --help does not need it

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        words = [
            (number, match[1]) for piece, number in tokenizer.get_vocab().items() if (match := _WORD.fullmatch(piece))
        ]
        encoded = tokenizer.encode_batch([f" {word}" for _, word in words], add_special_tokens=False)
        self._words = sorted(
            word for word, one in zip(words, encoded, strict=True) if one.ids == [word[0]]
        )  # by number: a seed means the same prompts everywhere
        if len(self._words) < _FEWEST:
            raise WeightsError(
                f"the tokenizer in {folder} has {len(self._words)} words of one token, expected at least {_FEWEST}"
            )

        self._added = tokenizer.num_special_tokens_to_add(False)

    def texts(self, lengths: Sequence[int], seed: int) -> list[str]:
        """A text of every length, in tokens with those that the model adds. Raises ``ValueError`` where none can be."""
        if (least := min(lengths, default=1)) <= self._added:
            raise ValueError(f"no text of {least} tokens can be made: the model adds {self._added}")
        rng = random.Random(seed)
        return [self.prompt(length - self._added, rng).text for length in lengths]

    def prompt(self, tokens: int, rng: random.Random) -> Prompt:
        """``tokens`` words, drawn with replacement."""
        chosen = rng.choices(self._words, k=tokens)
        return Prompt([number for number, _ in chosen], "".join(f" {word}" for _, word in chosen))
