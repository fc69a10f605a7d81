r"""Rewrites patterns of a text for the same text between the quotes of a JSON string.

Each character has one form there: ``\"``, ``\\``, ``\b``, ``\f``, ``\n``, ``\r``, ``\t``, ``\u`` with four
small digits for other control characters, and every other one as itself. So texts and their encodings correspond one to
one, and set operations, complements included, carry over.
"""

import re
import unicodedata
from typing import Final

import msgspec

from .pattern_parts import Many, One, Part, either

MAX_NESTING: Final = 32
"""Nesting of character classes."""
MAX_BRACKETS: Final = 50
_LETTERS: Final = {"\b": "b", "\t": "t", "\n": "n", "\f": "f", "\r": "r", '"': '"', "\\": "\\"}
_CONTROL: Final = frozenset(map(chr, range(0x20)))
CHANGED: Final = _CONTROL | {'"', "\\"}
"""Characters that are escaped."""
_AS_THEMSELVES: Final = r'["\\\x00-\x1f]'
"""The class of escaped characters, to be subtracted."""
_SPACE: Final = frozenset("\t\n\v\f\r")
_NONE: Final[frozenset[str]] = frozenset()
_SHORT: Final = {"d": _NONE, "w": _NONE, "s": _SPACE}
_NAMED: Final = {
    "alnum": _NONE, "alpha": _NONE, "digit": _NONE, "lower": _NONE, "upper": _NONE, "word": _NONE, "xdigit": _NONE,
    "ascii": CHANGED, "cntrl": _CONTROL, "blank": frozenset("\t"), "space": _SPACE, "graph": CHANGED - _CONTROL,
    "print": CHANGED - _CONTROL, "punct": CHANGED - _CONTROL,
}  # fmt: skip
_CATEGORY: Final = re.compile(r"[CLMNPSZ][a-z]?")
_PROPERTIES: Final = {
    **dict.fromkeys(("any", "ascii", "assigned"), CHANGED),
    **dict.fromkeys(("alphabetic", "letter", "lowercase", "uppercase", "number", "mark", "symbol", "separator"), _NONE),
    **dict.fromkeys(("arabic", "cyrillic", "devanagari", "greek", "han", "hangul", "hebrew", "hiragana"), _NONE),
    **dict.fromkeys(("katakana", "latin", "thai"), _NONE),
    **dict.fromkeys(("control", "other"), _CONTROL),
    "punctuation": CHANGED - _CONTROL,
    "whitespace": _SPACE,
}
_ESCAPED: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_BY_NUMBER: Final = re.compile(
    r"\\(?:x\{([0-9a-fA-F]{1,8})\}|x([0-9a-fA-F]{2})|u\{([0-9a-fA-F]{1,8})\}|u([0-9a-fA-F]{4})"
    r"|U\{([0-9a-fA-F]{1,8})\}|U([0-9a-fA-F]{8}))"
)
_PROPERTY: Final = re.compile(r"\\([pP])(?:\{([^{}]{1,64})\}|([A-Z]))")
_POSIX: Final = re.compile(r"\[:(\^?)([a-z]{1,8}):\]")
_GROUP: Final = re.compile(r"\((?:\?(?:(P?<[A-Za-z_][A-Za-z0-9_.\[\]]*>)|([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)])))?")
_REPEAT: Final = re.compile(r"([*+?]|\{[0-9, ]+\})\??")
_SPACES: Final = re.compile(r"(?:\s|#[^\n]*(?:\n|$))+")
_PLAIN: Final = re.compile(r"[A-Za-z0-9 ,:;=<>@!%_'`]")


class UnquotableError(Exception):
    """A pattern has a feature without counterpart; the message names it, in the middle of a sentence."""


def quoted_text(text: str) -> str:
    """The text between the quotes of a JSON string."""
    return "".join(_written(character) if character in CHANGED else character for character in text)


def quoted_literal(text: str, *, ignore_case: bool = False) -> str:
    """A pattern of exactly this text, or of any that differs from it by the case of letters."""
    ones = map(_character, text)
    return "".join((_ignoring_case(one) if ignore_case else one).pattern() for one in ones)


def quoted_pattern(pattern: str, flags: str = "") -> str:
    """A pattern in the same syntax, Rust's regex crate's, for use between slashes. Raises UnquotableError."""
    return parts_of(pattern, flags).pattern()


def parts_of(pattern: str, flags: str = "") -> Part:
    """Parts of :func:`quoted_pattern`'s result. Raises UnquotableError."""
    return _Reading(pattern, _Flags().changed(flags)).whole()


def _written(character: str) -> str:
    letter = _LETTERS.get(character)
    return f"\\u{ord(character):04x}" if letter is None else f"\\{letter}"


def _character(character: str) -> One:
    if character in CHANGED:
        return One("", _spelled_out(_written(character)))
    return One(_spelled_out(character), "")


def _ignoring_case(one: One) -> One:
    return One(f"(?i:{one.plain})" if one.plain else "", one.changed)


def _spelled_out(text: str) -> str:
    return "".join(one if _PLAIN.match(one) or ord(one) > 0xA0 else f"\\x{ord(one):02x}" for one in text)


def _of_class(verbatim: str, changed: frozenset[str]) -> One:
    """One character of a class, of which ``changed`` are all those that are not written as themselves."""
    options = []
    if letters := "".join(sorted(_LETTERS[one] for one in changed if one in _LETTERS)):
        options.append(rf"\x5c[{_spelled_out(letters)}]")
    if numbers := [f"{ord(one):02x}" for one in sorted(changed) if one not in _LETTERS]:
        options.append(rf"\x5cu00(?:{'|'.join(numbers)})")
    return One(f"[{verbatim}--{_AS_THEMSELVES}]", "|".join(options))


class _Flags(msgspec.Struct, frozen=True):
    ignore_case: bool = False
    dot_all: bool = False
    verbose: bool = False

    def changed(self, on: str, off: str = "") -> "_Flags":
        if "u" in off or "R" in on:
            raise UnquotableError("the flags -u and R of a pattern are not supported")
        return _Flags(
            "i" not in off and (self.ignore_case or "i" in on),
            "s" not in off and (self.dot_all or "s" in on),
            "x" not in off and (self.verbose or "x" in on),
        )


class _Reading:
    def __init__(self, pattern: str, flags: _Flags) -> None:
        self._pattern = pattern
        self._flags = flags
        self._at = 0
        self._outer: list[tuple[_Flags, list[list[Part]]]] = []
        self._options: list[list[Part]] = [[]]

    def whole(self) -> Part:
        pattern = self._pattern
        while self._at < len(pattern):
            if self._flags.verbose and (space := _SPACES.match(pattern, self._at)):
                self._at = space.end()
                continue
            row = self._options[-1]
            match pattern[self._at]:
                case "(":
                    self._group()
                case ")":
                    self._at += 1
                    if not self._outer:
                        raise UnquotableError("a bracket of a pattern is closed that was not opened")
                    inner = either(self._options)
                    self._flags, self._options = self._outer.pop()
                    self._options[-1].append(inner)
                case "[":
                    row.append(self._cased(_of_class(*self._class(0))))
                case "\\":
                    row.append(self._cased(self._escape()))
                case "|":
                    self._at += 1
                    self._options.append([])
                case "." if self._flags.dot_all:
                    self._at += 1
                    row.append(_of_class(r"[\s\S]", CHANGED))
                case ".":
                    self._at += 1
                    row.append(_of_class(r"[^\n]", CHANGED - {"\n"}))
                case "*" | "+" | "?" | "{":
                    self._repeat(row)
                case "^" if self._at == 0:
                    self._at += 1
                case "$" if self._at == len(pattern) - 1:
                    self._at += 1
                case "^" | "$":
                    raise UnquotableError("a pattern has a `^` or `$` inside")
                case other:
                    self._at += 1
                    row.append(self._cased(_character(other)))
        if self._outer:
            raise UnquotableError("a bracket of a pattern is not closed")
        return either(self._options)

    def _repeat(self, row: list[Part]) -> None:
        found = _REPEAT.match(self._pattern, self._at)
        if found is None:
            raise UnquotableError("a pattern has a `{` that is not a number of times")
        if not row:
            raise UnquotableError("a pattern repeats what is not there")
        self._at = found.end()
        row.append(Many(row.pop(), found[1].replace(" ", "")))

    def _cased(self, one: One) -> One:
        return _ignoring_case(one) if self._flags.ignore_case else one

    def _taken(self, length: int) -> str:
        self._at += length
        return self._pattern[self._at - length : self._at]

    def _group(self) -> None:
        found = _GROUP.match(self._pattern, self._at)
        if found is None or (found[0] == "(" and self._pattern.startswith("(?", self._at)):
            raise UnquotableError("a pattern has a group of a kind that is not supported")
        if len(self._outer) > MAX_BRACKETS:
            raise UnquotableError("brackets are nested too deeply in a pattern")
        self._at = found.end()
        before = self._flags
        self._flags = before.changed(found[2] or "", found[3] or "")
        if found[4] != ")":
            self._outer.append((before, self._options))
            self._options = [[]]

    def _escape(self) -> One:
        single = self._single_escape()
        return _of_class(*self._class_escape()) if single is None else _character(single)

    def _single_escape(self) -> str | None:
        """The character of an escape; None if it is a class, which is not consumed."""
        pattern, at = self._pattern, self._at
        if found := _BY_NUMBER.match(pattern, at):
            number = int(found[found.lastindex or 1], 16)
            if number > 0x10FFFF or 0xD800 <= number < 0xE000:
                raise UnquotableError("a pattern names a character that there is not")
            self._at = found.end()
            return chr(number)
        letter = pattern[at + 1 : at + 2]
        if letter in _ESCAPED:
            self._at += 2
            return _ESCAPED[letter]
        if not letter or letter.isalnum() or letter in "<>":
            return None
        self._at += 2
        return letter

    def _class_escape(self) -> tuple[str, frozenset[str]]:
        if found := _PROPERTY.match(self._pattern, self._at):
            self._at = found.end()
            changed = _property(found[2] or found[3])
            return found[0], changed if found[1] == "p" else CHANGED - changed
        letter = self._pattern[self._at + 1 : self._at + 2]
        if letter.lower() not in _SHORT:
            raise UnquotableError(f"the pattern's escape `\\{letter}` is not supported")
        changed = _SHORT[letter.lower()]
        return self._taken(2), changed if letter.islower() else CHANGED - changed

    def _class(self, depth: int) -> tuple[str, frozenset[str]]:
        """A class that begins here, without white space of a verbose pattern, and its escaped characters."""
        if depth > MAX_NESTING:
            raise UnquotableError("classes of characters are nested too deeply in a pattern")
        written = [self._taken(1)]
        self._skip()
        negated = self._pattern.startswith("^", self._at)
        if negated:
            written.append(self._taken(1))
            self._skip()
        left: frozenset[str] | None = None
        operator = ""
        found: frozenset[str] = _NONE
        literal = "-]" if self._pattern.startswith("]", self._at) else "-"
        while self._at < len(self._pattern) and self._pattern[self._at] in literal:
            written.append(_spelled(self._taken(1)))
            literal = "-"
            self._skip()
        while True:
            self._skip()
            if self._at >= len(self._pattern):
                raise UnquotableError("a class of characters is not closed in a pattern")
            following = self._pattern[self._at : self._at + 2]
            if following[0] == "]":
                written.append(self._taken(1))
                break
            if following in ("&&", "--", "~~"):
                left, operator, found = _combined(left, operator, found), following, _NONE
                written.append(self._taken(2))
                continue
            found |= self._item(written, depth)
        found = _combined(left, operator, found)
        return "".join(written), CHANGED - found if negated else found

    def _item(self, written: list[str], depth: int) -> frozenset[str]:
        """A character, a range, or a class inside a class."""
        if posix := _POSIX.match(self._pattern, self._at):
            if posix[2] not in _NAMED:
                raise UnquotableError(f"the class `{posix[0]}` of a pattern is not supported")
            written.append(self._taken(len(posix[0])))
            return CHANGED - _NAMED[posix[2]] if posix[1] else _NAMED[posix[2]]
        if self._pattern[self._at] == "[":
            inner, found = self._class(depth + 1)
            written.append(inner)
            return found
        low = self._member()
        if low is None:
            inner, found = self._class_escape()
            written.append(inner)
            return found
        self._skip()
        ahead = self._pattern[self._at : self._at + 2]
        if ahead[:1] != "-" or ahead[1:] in ("]", "-", ""):
            written.append(_spelled(low))
            return frozenset(low) & CHANGED
        self._at += 1
        self._skip()
        high = self._member() if self._at < len(self._pattern) else None
        if high is None or high < low:
            raise UnquotableError("a range of characters in a pattern has no end, or ends before it begins")
        written.append(f"{_spelled(low)}-{_spelled(high)}")
        return frozenset(one for one in CHANGED if low <= one <= high)

    def _member(self) -> str | None:
        """One character of a class; None for an escape that is a class."""
        if self._pattern[self._at] == "\\":
            return self._single_escape()
        return self._taken(1)

    def _skip(self) -> None:
        """Skips white space of a verbose pattern."""
        if self._flags.verbose and (space := _SPACES.match(self._pattern, self._at)):
            self._at = space.end()


def _combined(left: frozenset[str] | None, operator: str, right: frozenset[str]) -> frozenset[str]:
    match operator if left is not None else "":
        case "&&":
            return (left or _NONE) & right
        case "--":
            return (left or _NONE) - right
        case "~~":
            return (left or _NONE) ^ right
    return right


def _spelled(character: str) -> str:
    return f"\\x{{{ord(character):x}}}"


def _property(name: str) -> frozenset[str]:
    if _CATEGORY.fullmatch(name):
        return frozenset(one for one in CHANGED if unicodedata.category(one).startswith(name))
    known = _PROPERTIES.get(re.sub(r"[ _-]", "", name).lower())
    if known is None:
        raise UnquotableError(f"the class `\\p{{{name}}}` of a pattern is not supported")
    return known
