"""Tokens of a text as words: a word is some tokens, never half of a character."""

import string
from collections.abc import Sequence
from typing import Final

import msgspec

from .languages import WITHOUT_SPACES
from .untimed_vocabulary import UntimedVocabulary
from .vocabulary import Vocabulary

PREPENDED: Final = "\"'“¿([{-"
"""Punctuation that belongs to the word after it."""
APPENDED: Final = "\"'.。,，!！?？:：”)]}、"  # noqa: RUF001
"""And to the one before."""

_HALF: Final = "\ufffd"


class SpelledWord(msgspec.Struct):
    """A word, and the tokens that spell it."""

    text: str
    tokens: list[int]


def split_words(
    vocabulary: Vocabulary | UntimedVocabulary, tokens: Sequence[int], language: str | None
) -> list[SpelledWord]:
    """The words of a text in order, punctuation separate unless tokens are letters; all tokens are in one of them."""
    characters = _split_characters(vocabulary, tokens)
    if language in WITHOUT_SPACES:
        return characters
    words: list[SpelledWord] = []
    apart = string.punctuation if vocabulary.delimiter is None else ""
    for piece in characters:
        begins = piece.text.startswith(" ") or piece.text.strip() in apart
        if begins or not words:
            words.append(piece)
        else:
            words[-1].text += piece.text
            words[-1].tokens += piece.tokens
    return words


def _split_characters(vocabulary: Vocabulary | UntimedVocabulary, tokens: Sequence[int]) -> list[SpelledWord]:
    """The shortest runs of tokens that hold whole characters."""
    whole = vocabulary.decode(list(tokens))
    pieces: list[SpelledWord] = []
    run: list[int] = []
    passed = 0
    for token in tokens:
        run.append(token)
        text = vocabulary.decode(run)
        half = text.find(_HALF)
        # one that stands in the whole text is no half of a character: the model's output is invalid
        if half < 0 or whole[passed + half : passed + half + 1] == _HALF:
            pieces.append(SpelledWord(text, run))
            run = []
            passed += len(text)
    if run:
        pieces.append(SpelledWord(vocabulary.decode(run), run))
    return pieces
