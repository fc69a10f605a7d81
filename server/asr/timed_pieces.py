"""Words and sentences of a streaming model that writes each word as long after its audio as its delay is."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from .segments import FRAMES_A_SECOND, Segment, Word, compression_ratio
from .streaming import Piece, TextToken

_SENTENCE_ENDS: Final = (".", "?", "!")
_LONGEST_PAUSE: Final = 2.0
"""Seconds between the beginnings of two words that are in one segment."""


def segments_of(pieces: Sequence[Piece], position: float, seconds: float) -> list[Segment]:
    """The sentences of audio of ``seconds``, whose tokens have times; ``position``: seconds of one."""
    words = list(_words_of([token for piece in pieces for token in piece.tokens]))
    timed = []
    for word, behind in pairwise([*words, None]):
        assert word is not None
        last = word[-1].time + position
        end = min(last if behind is None else max(word[0].time, min(last, behind[0].time)), seconds)
        text = b"".join(token.bytes for token in word).decode("utf-8", "replace")
        likely = sum(math.exp(token.logprob or 0.0) for token in word) / len(word)
        timed.append(Word(text, min(word[0].time, end), end, likely))
    found: list[Segment] = []
    begin = 0
    for place, spoken in enumerate(timed, 1):
        ended = spoken.word.rstrip().endswith(_SENTENCE_ENDS)
        if ended or place == len(timed) or timed[place].start - spoken.start > _LONGEST_PAUSE:
            found.append(_segment(len(found), timed[begin:place], words[begin:place]))
            begin = place
    return found


def _words_of(tokens: Sequence[TextToken]) -> Iterator[list[TextToken]]:
    """Those of each word, which begins with a space."""
    word: list[TextToken] = []
    for token in tokens:
        if word and token.bytes.startswith(b" "):
            yield word
            word = []
        word.append(token)
    if word:
        yield word


def _segment(number: int, words: list[Word], tokens: Sequence[Sequence[TextToken]]) -> Segment:
    every = [token for word in tokens for token in word]
    text = "".join(word.word for word in words)
    return Segment(
        id=number,
        seek=round(words[0].start * FRAMES_A_SECOND),
        start=words[0].start,
        end=words[-1].end,
        text=text,
        tokens=[token.token for token in every],
        temperature=0.0,
        avg_logprob=sum(token.logprob or 0.0 for token in every) / len(every),
        compression_ratio=compression_ratio(text),
        no_speech_prob=0.0,
        words=words,
    )
