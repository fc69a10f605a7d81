# ruff: noqa: RUF001 - other languages end their sentences with characters that look like ours
"""Splits streamed text into pieces for speech.

The pieces join to the text. The cuts do not depend on how the text arrives. The work for a piece is bounded by its
length.
"""

import re
import unicodedata
from typing import Final

FIRST_CHARS: Final = 64
"""Characters of a text's first piece, at most, so that audio begins early; it may end with a clause."""
MOST_CHARS: Final = 260
"""Characters of other pieces, at a speed of 1: about twenty seconds. No other caller is served meanwhile."""
WHOLE_CHARS: Final = 4096
"""Characters of a text that is not cut, at most."""
_LEAST_SPEED: Final = 0.25
_PIECE_COSTS: Final = 25
"""Characters that take as long as a piece's constant cost."""
FIRST_CLAUSE_CHARS: Final = 4
"""Characters before a comma that ends the first piece; shorter audio would end before the next can follow."""
_SLICE: Final = 1024

_CLOSERS: Final = "\"'”’»›)\\]}」』】）*_`"
# digits, symbols and syllabic signs are spoken as words
_LONG: Final = re.compile(r"[0-9%&@#$€£+=/\\^~°§©®\u2e80-\U0010ffff]")
_LONG_COUNTS: Final = 4
"""Weight of one of them in the length of a piece."""
_PLACE: Final = re.compile(
    rf"(?P<stop>[.!?…؟۔।॥]{{1,12}})(?P<close>[{_CLOSERS}]{{0,6}})(?P<space>\s{{0,8}})"
    rf"|(?P<wide>[。！？｡．]{{1,12}})[{_CLOSERS}]{{0,6}}\s{{0,8}}"  # these need no white space behind them
    r"|(?P<line>[^\S\n]{0,8}\n\s{0,8})"
)
_CLAUSE: Final = re.compile(rf"[,;:][{_CLOSERS}]{{0,3}}\s{{1,4}}|\s?[—–]\s{{0,2}}|[，、；：]")
_BREATH: Final = re.compile(
    r"\s(?=(?:and|but|or|because|which|who|that|so|when|while|where|if|unless|although|with|without|for|as|to|in|into|on|"
    r"at|about|from|by|over|under|after|before|during|through|between|since|until|than)\s)"
)
_LIST_ITEM: Final = re.compile(r"\s{0,8}(?:[-*+•>|#]|\d{1,2}[.)]\s|```)")
_NUMBER_OF_ITEM: Final = re.compile(r"(?:^|\n)[\s#>*-]{0,8}\d{1,3}$")
_WORD: Final = re.compile(r"[\w.&]{1,16}$")
_BEFORE_NAMES: Final = re.compile(
    r"(?:mr|mrs|ms|dr|prof|rev|hon|st|sgt|capt|lt|col|gen|sen|rep|gov|pres|messrs|mme|mlle|vs|cf|approx|ca|e\.g"
    r"|i\.e|eg|ie|u\.s|u\.k|u\.n|ph\.d|z\.b|bzw|hr|fr|sr|sra|srta|mt|ft|univ)",
    re.IGNORECASE,
)
_BEFORE_NUMBERS: Final = re.compile(
    r"(?:no|nos|nr|vol|ch|art|sec|p|pp|fig|figs|eq|jan|feb|mar|apr|jun|jul|aug|sept|sep|oct|nov|dec)",
    re.IGNORECASE,
)


class SentenceSplitter:
    """Splits one text. Not to be used after :meth:`finish`."""

    def __init__(self, speed: float = 1.0) -> None:
        """At a low speed a piece is shorter, so that it takes about the same time."""
        self._most = int(MOST_CHARS * min(1.0, max(_LEAST_SPEED, speed)))
        self._rest = ""
        self._first = True

    def push(self, text: str) -> list[str]:
        """Complete pieces so far."""
        pieces: list[str] = []
        for start in range(0, len(text), _SLICE):
            self._rest += text[start : start + _SLICE]
            while end := _end_of_piece(self._rest, FIRST_CHARS if self._first else self._most, self._first):
                piece, self._rest = self._rest[:end], self._rest[end:]
                pieces.append(piece)
                self._first = self._first and not any(map(str.isalnum, piece))
        return pieces

    def finish(self) -> list[str]:
        """The rest."""
        rest, self._rest = self._rest, ""
        return [rest] if rest else []


class WholeText:
    """Keeps a text in one piece, with the methods of :class:`SentenceSplitter`; a longer one than
    :data:`WHOLE_CHARS` is cut."""

    def __init__(self) -> None:
        self._rest = ""

    def push(self, text: str) -> list[str]:
        """Complete pieces so far."""
        self._rest += text
        pieces: list[str] = []
        while len(self._rest) > WHOLE_CHARS:
            pieces.append(self._rest[:WHOLE_CHARS])
            self._rest = self._rest[WHOLE_CHARS:]
        return pieces

    def finish(self) -> list[str]:
        """The rest."""
        rest, self._rest = self._rest, ""
        return [rest] if rest else []


def weight(piece: str, speed: float = 1.0) -> float:
    """About how long it takes to make it, in characters of plain text at a speed of 1."""
    chars = len(piece) + (_LONG_COUNTS - 1) * sum(1 for _ in _LONG.finditer(piece))
    return _PIECE_COSTS + chars / max(_LEAST_SPEED, speed)


def _end_of_piece(text: str, most: int, first: bool) -> int:
    """End of the first piece of ``text``; 0 if it is not known yet, or is the end of the text.

    A place is checked once a character follows it: later text then cannot change the result.
    """
    most = _within(text, most)
    end = 0
    for match in _PLACE.finditer(text, 0, most + 1):
        if match.end() > most or match.end() == len(text):
            break
        if _ends_at(text, match):
            end = match.end()
            break
    if first:
        for clause in _CLAUSE.finditer(text, FIRST_CLAUSE_CHARS, end or most):
            if clause.end() < len(text) and not _in_number(text, clause):
                return clause.end()
    if end or len(text) <= most:
        return end
    return _forced(text, most)


def _within(text: str, most: int) -> int:
    """How many characters of ``text`` count as ``most``."""
    for number, match in enumerate(_LONG.finditer(text, 0, most), 1):
        if match.end() + number * (_LONG_COUNTS - 1) >= most:
            return match.end()
    return most


def _ends_at(text: str, match: re.Match[str]) -> bool:
    """Whether a sentence ends at a place that a character follows."""
    if match["wide"]:
        return True
    if match["line"]:
        return _line_ends_at(text, match)
    if not match["space"]:
        return False  # a decimal point, a name of a file
    stop, follows = match["stop"], text[match.end()]
    if follows.islower():
        # it continues after an abbreviation, three dots, or direct speech
        return not match["close"] and stop[-1] in "!?؟"
    if stop != ".":
        return True
    before = text[: match.start()]
    if _NUMBER_OF_ITEM.search(before[-16:]) and "\n" not in match["space"]:
        return False
    word = _WORD.search(before[-16:])
    if word is None:
        return True
    name = word[0]
    if len(name) == 1 and name.isupper() and name != "I":
        return False  # an initial
    if _BEFORE_NUMBERS.fullmatch(name):
        return not follows.isdigit()
    return _BEFORE_NAMES.fullmatch(name) is None


def _line_ends_at(text: str, match: re.Match[str]) -> bool:
    """Lines that are merely wrapped belong together; paragraphs, headings and items of lists do not."""
    said = text[: match.start()]
    if not said.strip():
        return False
    if match["line"].count("\n") > 1 or said.endswith((":", "：")):
        return True
    line = said.rfind("\n") + 1
    return bool(_LIST_ITEM.match(text, line) or _LIST_ITEM.match(text, match.end()))


def _in_number(text: str, clause: re.Match[str]) -> bool:
    """Such as a range of years."""
    return text[clause.start() - 1].isdigit() and text[clause.end()].isdigit()


def _forced(text: str, most: int) -> int:
    """The best cut of a sentence that is too long."""
    least = most // 3
    for kind in (_CLAUSE, _BREATH):
        ends = [match.end() for match in kind.finditer(text, least, most)]
        if ends:
            return ends[-1]
    blank = max((text.rfind(character, least, most) for character in " \n\t"), default=-1)
    return blank + 1 if blank >= 0 else most


_FENCE: Final = re.compile(r"```[\w+-]{0,20}")
_IMAGE_OR_LINK: Final = re.compile(r"!?\[([^\[\]]{0,200})\]\([^()\s]{0,300}\)")
_RULE: Final = re.compile(r"(?m)^[ \t]{0,8}(?:[-*_=~][ \t]?){3,80}$")
_LINE_START: Final = re.compile(r"(?m)^[ \t]{0,8}(?:#{1,6}[ \t]|>[ \t]?|[-*+•][ \t])")
_EMPHASIS: Final = re.compile(r"\*{1,3}(?=\S)|(?<=\S)\*{1,3}|(?<!\w)_{1,3}(?=\S)|(?<=\S)_{1,3}(?!\w)|~~|`")
_TAG: Final = re.compile(r"<(/?[A-Za-z][^<>]{0,100}|\|[^<>|]{0,100}\|)>")
"""HTML's, and the special tokens of language models."""
_TABLE: Final = re.compile(r"[ \t]*\|[ \t]*")
_BLANKS: Final = re.compile(r"\s+")
_UNSEEN: Final = frozenset(("So", "Sk", "Cc", "Cf", "Cs", "Co", "Cn"))
"""Kinds of characters that have no sound: pictures, controls."""


def sayable(piece: str, tags: frozenset[str] = frozenset()) -> str:
    """On one line, without Markdown's marks and without pictures; empty where nothing is left to say. ``tags``: marks
    in angle brackets that stay."""
    text = _FENCE.sub(" ", piece)
    text = _IMAGE_OR_LINK.sub(r"\1", text)
    text = _RULE.sub(" ", text)
    text = _LINE_START.sub("", text)
    text = _EMPHASIS.sub("", text)
    text = _TAG.sub(lambda match: match[0] if match[1] in tags else " ", text)
    text = _TABLE.sub(", ", text)
    text = "".join(" " if _unseen(character) else character for character in text)
    text = _BLANKS.sub(" ", text).strip().lstrip(", ")
    return text if any(map(str.isalnum, text)) else ""


def _unseen(character: str) -> bool:
    # the two are a word of Piper's own language, in which a client need not speak to it
    return character in "[]\ufe0f" or (character not in "°©®" and unicodedata.category(character) in _UNSEEN)
