"""Judges whether a caller's words so far are complete, and how long to wait for more.

It needs no model: it uses the transcript up to the pause, its last punctuation and words, and earlier pauses after
which this caller continued.
"""

import re
from enum import Enum
from typing import Final, Literal

Eagerness = Literal["low", "medium", "high", "auto"]

HESITANT: Final = 1.3
"""Factor by which a pause must exceed the longest pause within speech so far, unless the sentence is complete."""

_WORD: Final = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_TAIL: Final = 200
"""Characters at the end that are judged."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FILLERS: Final = _words("um uh uhm umm erm er hmm hm mm ah eh äh ähm euh este")
_OPEN: Final = _words("""
    a an the and but or so because if when while that which who whose than then to of for with without from in on at
    by into about as like between my your his her its our their this these those is are was were am be been will would
    can could should may might must do does did not i'm you're he's she's it's we're they're i we they i'd i'll let's
    also plus maybe well actually basically und oder aber weil dass der die das ein eine et ou mais que le la les un
    une y o pero porque el los las
""")
_ENDS_QUESTIONS: Final = _words("""
    to of for with from in on at by into about as like that this these those is are was were am be been will would can
    could should may might must do does did not then so than without i we they
""")
"""Open words with which a question may well end: where are you from?"""
_QUESTION: Final = ("?", "\uff1f", "\u061f")
_ENDS: Final = (".", "!", *_QUESTION, "\u3002", "\uff01", "\u0964")
_GOES_ON: Final = ("...", "\u2026", ",", "\uff0c", "\u3001", ":", ";", "-", "\u2013", "\u2014")
_CLOSING: Final = "\"'\u201d\u2019)\u00bb\u300d"


class Completeness(Enum):
    """How a transcript reads at a pause."""

    COMPLETE = "complete"
    UNSURE = "unsure"
    OPEN = "open"


_WAITS: Final[dict[str, dict[Completeness, int]]] = {
    "high": {Completeness.COMPLETE: 200, Completeness.UNSURE: 600, Completeness.OPEN: 2000},
    "medium": {Completeness.COMPLETE: 400, Completeness.UNSURE: 1200, Completeness.OPEN: 4000},
    "low": {Completeness.COMPLETE: 1000, Completeness.UNSURE: 3000, Completeness.OPEN: 8000},
}
"""Milliseconds of silence; the last of each is the longest pause that OpenAI documents for the eagerness."""


def read(transcript: str) -> Completeness:
    """Judges by the last mark and the last word; nothing that was understood is :attr:`Completeness.UNSURE`."""
    text = transcript[-_TAIL:].strip().rstrip(_CLOSING)
    words = _WORD.findall(text.lower().replace("\u2019", "'"))
    if not words:
        return Completeness.UNSURE
    last = words[-1]
    if last in _FILLERS or text.endswith(_GOES_ON):
        return Completeness.OPEN
    if last in _OPEN and not (text.endswith(_QUESTION) and last in _ENDS_QUESTIONS):
        return Completeness.OPEN
    return Completeness.COMPLETE if text.endswith(_ENDS) else Completeness.UNSURE


def wait_ms(transcript: str, eagerness: Eagerness, longest_pause_ms: int = 0) -> int:
    """How long the pause must be that ends the turn; ``longest_pause_ms`` is the longest the caller went on after."""
    waits = _WAITS["medium" if eagerness == "auto" else eagerness]
    reading = read(transcript)
    wait = waits[reading]
    if reading is Completeness.UNSURE:
        wait = max(wait, int(longest_pause_ms * HESITANT))
    return min(wait, waits[Completeness.OPEN])
