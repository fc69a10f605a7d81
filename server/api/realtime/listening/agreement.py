"""The stable part of a hypothesis about growing audio: LocalAgreement-2 (arXiv:2307.14743).

A model without streaming is run again and again over more audio. Words on which two consecutive hypotheses agree are
settled: they are sent once and never taken back.
"""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Final, NamedTuple

_ALONE: Final = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Letters of scripts that put no spaces between words: each is a word here."""
_WORDS: Final = re.compile(rf"\s*(?:[{_ALONE}][^\w\s]*|[^\s{_ALONE}]+)")
_MARKS: Final = re.compile(r"[\W_]+")
_LOOKED_AT: Final = 400
"""Words before the end of the settled text that are compared with a hypothesis that does not begin with it."""


class Word(NamedTuple):
    """``text`` includes the space before it, if there is one."""

    text: str
    begin: int
    """Its position in the text, in characters."""

    @property
    def key(self) -> str:
        """Equal for words that differ only in case and punctuation."""
        return _MARKS.sub("", self.text).lower()


def words_of(text: str) -> list[Word]:
    """They join to the text, without the space at its end."""
    return [Word(match.group(), match.start()) for match in _WORDS.finditer(text)]


class LocalAgreement:
    """Agreement over one stretch of audio. ``settled`` is the text sent so far."""

    def __init__(self) -> None:
        self.settled: list[Word] = []
        self._last: list[Word] = []

    @property
    def text(self) -> str:
        return "".join(word.text for word in self.settled)

    def add(self, hypothesis: str) -> list[Word]:
        """The words that are settled by this hypothesis and the one before."""
        words = words_of(hypothesis)
        begin = _continuation(self.settled, words)
        before = _continuation(self.settled, self._last)
        fresh = []
        for word, last in zip(words[begin:], self._last[before:], strict=False):
            if word.key != last.key:
                break
            fresh.append(word)
        self._last = words
        return self._settle(words, begin, fresh) if fresh else []

    def finish(self, hypothesis: str) -> list[Word]:
        """Words of the last hypothesis, about all of the audio, behind the settled text."""
        words = words_of(hypothesis)
        begin = _continuation(self.settled, words)
        return self._settle(words, begin, words[begin:])

    def _settle(self, words: list[Word], begin: int, fresh: list[Word]) -> list[Word]:
        """Settle ``fresh`` words of a hypothesis. Returns them, before them any marks that it puts behind the last
        settled word."""
        agreed, settled = list(fresh), self.settled
        if settled and begin:
            last, now = settled[-1], words[begin - 1]
            if now.key == last.key and len(now.text) > len(last.text) and now.text.startswith(last.text):
                settled[-1] = now
                agreed.insert(0, Word(now.text[len(last.text) :], now.begin + len(last.text)))
        settled += fresh
        return agreed


def _continuation(settled: Sequence[Word], words: Sequence[Word]) -> int:
    """Index of the hypothesis's first word behind the settled text."""
    count = len(settled)
    if [word.key for word in words[:count]] == [word.key for word in settled]:
        return count
    # the hypothesis changed settled words: continue behind the last words that both share
    skipped = max(0, count - _LOOKED_AT)
    ours = [word.key for word in settled[skipped:]]
    theirs = [word.key for word in words[skipped : count + _LOOKED_AT]]
    matches = [
        block for block in SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks() if block.size
    ]
    if not matches:
        return min(count, len(words))
    last = matches[-1]
    missing = len(ours) - (last.a + last.size)
    return min(skipped + last.b + last.size + missing, len(words))
