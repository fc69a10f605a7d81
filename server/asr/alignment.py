"""The words of a transcript, their times from a forced aligner, and the segments that they make (Qwen3-ForcedAligner,
arXiv:2601.21337)."""

import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from .segments import FRAMES_A_SECOND, SENTENCE_ENDS, Segment, Word, compression_ratio
from .streaming import TextToken

_IDEOGRAPHS: Final = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)
"""Code points [first, last] of characters each of which is a word."""
_LONGEST_PAUSE: Final = 2.0
"""Seconds between the beginnings of two words that are in one segment."""
_FEW: Final = 2
"""Times out of order that take a neighbour's; more are spread between both."""


class SpokenWord(NamedTuple):
    """A word without punctuation, and its characters [begin, end) in the transcript."""

    text: str
    begin: int
    end: int


def spoken_words(text: str) -> list[SpokenWord]:
    """What is between spaces, of letters, digits and apostrophes; each ideograph is a word of its own."""
    found: list[SpokenWord] = []
    word, begin, end = "", 0, 0

    def close() -> None:
        nonlocal word
        if word:
            found.append(SpokenWord(word, begin, end))
        word = ""

    for place, character in enumerate(text):
        if character.isspace():
            close()
        elif _is_ideograph(character):
            close()
            found.append(SpokenWord(character, place, place + 1))
        elif character == "'" or unicodedata.category(character)[0] in "LN":
            begin = begin if word else place
            word, end = word + character, place + 1
    close()
    return found


def _is_ideograph(character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in _IDEOGRAPHS)


def in_order(times: Sequence[float]) -> list[int]:
    """The times, none before its predecessor: those of the longest run in order stay.

    Others take the nearer neighbour's if at most two are beside each other, and are spread evenly otherwise. Fractions
    are cut off.
    """
    fixed = [float(time) for time in times]
    kept = _longest_run(fixed)
    for before, behind in pairwise([-1, *kept, len(fixed)]):
        count = behind - before - 1
        left = fixed[before] if before >= 0 else None
        right = fixed[behind] if behind < len(fixed) else left
        first = right if left is None else left
        assert first is not None, "a run holds one time at least"
        assert right is not None
        for place in range(1, count + 1):
            if count > _FEW:
                fixed[before + place] = first + (right - first) / (count + 1) * place
            else:
                fixed[before + place] = first if place <= count + 1 - place else right
    return [int(time) for time in fixed]


def _longest_run(times: Sequence[float]) -> list[int]:
    """Places of the longest run that does not fall; of several, the one that ends first, each of whose predecessors is
    the first that can be."""
    ends: list[float] = []
    """By length: the lowest end of a run of it."""
    levels: list[list[tuple[float, int]]] = []
    """By length: the ends of runs, negated, which fall, and their places."""
    previous: list[int] = []
    for place, time in enumerate(times):
        length = bisect_right(ends, time)
        if length == len(levels):
            levels.append([])
            ends.append(time)
        ends[length] = time
        levels[length].append((-time, place))
        before = levels[length - 1] if length else []
        previous.append(before[bisect_left(before, (-time, -1))][1] if before else -1)
    place, run = levels[-1][0][1] if levels else -1, list[int]()
    while place >= 0:
        run.append(place)
        place = previous[place]
    return run[::-1]


def timed_segments(
    text: str,
    words: Sequence[SpokenWord],
    times: Sequence[int],
    tokens: Sequence[TextToken],
    begin: float,
    end: float,
    lead: str,
) -> list[Segment]:
    """The sentences of a window from ``begin`` to ``end`` seconds; a text without words, such as "♪", is one.

    ``times``: in milliseconds from there, two of each word. ``tokens`` are those of the text. ``lead`` is before the
    text of the first, unless that begins with white space. Ids are 0.
    """
    lead = "" if text[:1].isspace() else lead
    if not words:
        return [_segment(lead + text, [], (begin, end), tokens, begin)] if text.strip() else []
    timed = [
        Word(word.text, begin + start / 1000, begin + max(start, end) / 1000, 1.0)
        for word, start, end in zip(words, times[::2], times[1::2], strict=True)
    ]
    found: list[Segment] = []
    first = at = 0
    for place, (word, spoken) in enumerate(zip(words, timed, strict=True), 1):
        last = place == len(words)
        stop = len(text) if last else words[place].begin
        ended = any(character in SENTENCE_ENDS for character in text[word.end : stop])
        if not (last or ended or timed[place].start - spoken.start > _LONGEST_PAUSE):
            continue
        stop = stop if last else len(text[:stop].rstrip())
        part = (lead if not found else "") + text[at:stop]
        among = timed[first:place]
        found.append(_segment(part, among, (among[0].start, among[-1].end), _within(tokens, text, at, stop), begin))
        first, at = place, stop
    return found


def _within(tokens: Iterable[TextToken], text: str, begin: int, end: int) -> list[TextToken]:
    """Those that begin among the characters [begin, end) of ``text``, whose bytes theirs are."""
    first, last = (len(text[:place].encode()) for place in (begin, end))
    found, at = [], 0
    for token in tokens:
        if first <= at < last:
            found.append(token)
        at += len(token.bytes)
    return found


def _segment(
    text: str, words: list[Word], span: tuple[float, float], tokens: Sequence[TextToken], begin: float
) -> Segment:
    return Segment(
        id=0,
        seek=round(begin * FRAMES_A_SECOND),
        start=span[0],
        end=span[1],
        text=text,
        tokens=[token.token for token in tokens],
        temperature=0.0,
        avg_logprob=sum(token.logprob or 0.0 for token in tokens) / max(1, len(tokens)),
        compression_ratio=compression_ratio(text),
        no_speech_prob=0.0,
        words=words,
    )
