"""The JSON object of a call's arguments, as far as what a model wrote is one."""

import re
from enum import Enum, auto
from typing import Any, Final

import msgspec

MAX_DEPTH: Final = 128
"""Clients' readers refuse deeper objects."""
MAX_WORD: Final = 400
"""Characters of a number; each is read again with all before it."""
_SPACE: Final = re.compile(r"[ \t\n\r]+")
_INSIDE: Final = re.compile(r'[^"\\\x00-\x1f]+')
_WORD: Final = re.compile(r"[A-Za-z0-9.+\-]")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_BEGINS_NUMBER: Final = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:(?<=[0-9])[eE][+-]?[0-9]*)?)?")
_HEX: Final = "[0-9a-fA-F]"
_LOW: Final = rf"\\u[dD][c-fC-F]{_HEX}{{2}}"
_ESCAPE: Final = re.compile(rf'\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F]){_HEX}{{4}}|u[dD][89abAB]{_HEX}{{2}}{_LOW})')
"""Halves of a character come as both."""
_BEGINS_ESCAPE: Final = re.compile(
    rf"\\(?:u{_HEX}{{0,4}}|u[dD][89abAB]{_HEX}{{2}}\\(?:u(?:[dD](?:[c-fC-F]{_HEX}?)?)?)?)"
)
_LITERALS: Final = ("true", "false", "null")


class _Next(Enum):
    """What may follow."""

    OBJECT = auto()
    KEY_OR_END = auto()
    KEY = auto()
    COLON = auto()
    VALUE_OR_END = auto()
    VALUE = auto()
    COMMA_OR_END = auto()
    STRING = auto()
    ESCAPE = auto()
    WORD = auto()
    END = auto()
    NOTHING = auto()
    """After a mistake."""


class ObjectText:
    """Passes on a text that grows, as long as it begins one JSON object: at anything else a client's SDK raises.

    Nothing behind the object is passed on, and nothing from a mistake on. Control characters in strings, which JSON
    does not allow and models write, are escaped.
    """

    def __init__(self) -> None:
        self._next = _Next.OBJECT
        self._closing: list[str] = []
        """Brackets that close what is open."""
        self._is_key = False
        self._word = ""
        self._escaped = ""
        """An escape that is not yet whole."""
        self._passed = 0
        self._complete = 0

    def take(self, text: str) -> str:
        """More of the text; returns what of it is passed on."""
        at, out = 0, []
        while at < len(text) and self._next not in (_Next.END, _Next.NOTHING):
            taken, shown = self._step(text, at)
            at += taken
            out.append(shown)
            self._passed += len(shown)
            if self._next in (_Next.COMMA_OR_END, _Next.KEY_OR_END, _Next.VALUE_OR_END, _Next.END):
                self._complete = self._passed
        return "".join(out)

    def value(self, passed: str) -> dict[str, Any]:
        """The object of what was ``passed`` on in all, with those values in it that are complete."""
        self._end_word()
        text = passed[: self._complete] + "".join(reversed(self._closing))
        try:
            value: dict[str, Any] = msgspec.json.decode(text or "{}")
        except (msgspec.DecodeError, RecursionError):
            return {}  # a number without bound
        return value

    def _step(self, text: str, at: int) -> tuple[int, str]:
        """Characters taken, and what is passed on of them."""
        match self._next:
            case _Next.STRING:
                return self._inside(text, at)
            case _Next.ESCAPE:
                return self._escape(text[at])
            case _Next.WORD:
                return self._more_word(text[at])
        if (space := _SPACE.match(text, at)) is not None:
            return len(space[0]), "" if self._next is _Next.OBJECT else space[0]
        return self._sign(text[at])

    def _inside(self, text: str, at: int) -> tuple[int, str]:
        if (run := _INSIDE.match(text, at)) is not None:
            return len(run[0]), run[0]
        char = text[at]
        if char == "\\":
            self._next, self._escaped = _Next.ESCAPE, char
            return 1, ""
        if char == '"':
            self._next = _Next.COLON if self._is_key else _Next.COMMA_OR_END
        else:
            char = f"\\u{ord(char):04x}"
        return 1, char

    def _escape(self, char: str) -> tuple[int, str]:
        self._escaped += char
        if _ESCAPE.fullmatch(self._escaped):
            whole, self._escaped = self._escaped, ""
            self._next = _Next.STRING
            return 1, whole
        return (1, "") if _BEGINS_ESCAPE.fullmatch(self._escaped) else self._fail()

    def _more_word(self, char: str) -> tuple[int, str]:
        if _WORD.match(char) is None:
            if not _is_word(self._word):
                return self._fail()
            self._next = _Next.COMMA_OR_END
            return 0, ""
        word = self._word + char
        if len(word) > MAX_WORD or not _begins_word(word):
            return self._fail()
        self._word = word
        return 1, char

    def _sign(self, char: str) -> tuple[int, str]:
        expected = self._next
        values = expected in (_Next.VALUE, _Next.VALUE_OR_END)
        if char == "{" and (values or expected is _Next.OBJECT) and len(self._closing) < MAX_DEPTH:
            self._closing.append("}")
            self._next = _Next.KEY_OR_END
        elif char == "[" and values and len(self._closing) < MAX_DEPTH:
            self._closing.append("]")
            self._next = _Next.VALUE_OR_END
        elif char == '"' and (values or expected in (_Next.KEY, _Next.KEY_OR_END)):
            self._is_key = not values
            self._next = _Next.STRING
        elif char == ":" and expected is _Next.COLON:
            self._next = _Next.VALUE
        elif char == "," and expected is _Next.COMMA_OR_END:
            self._next = _Next.KEY if self._closing[-1] == "}" else _Next.VALUE
        elif self._closes(char):
            self._closing.pop()
            self._next = _Next.COMMA_OR_END if self._closing else _Next.END
        elif values and _WORD.match(char):
            self._word = ""
            self._next = _Next.WORD
            return 0, ""
        else:
            return self._fail()
        return 1, char

    def _closes(self, char: str) -> bool:
        ends = (_Next.COMMA_OR_END, _Next.KEY_OR_END, _Next.VALUE_OR_END)
        return self._next in ends and self._closing[-1] == char

    def _end_word(self) -> None:
        if self._next is _Next.WORD and _is_word(self._word):
            self._complete = self._passed

    def _fail(self) -> tuple[int, str]:
        self._end_word()
        self._next = _Next.NOTHING
        return 1, ""


def _is_word(word: str) -> bool:
    return word in _LITERALS or _NUMBER.fullmatch(word) is not None


def _begins_word(word: str) -> bool:
    return _BEGINS_NUMBER.fullmatch(word) is not None or any(each.startswith(word) for each in _LITERALS)


def object_of(text: str) -> dict[str, Any]:
    """The object that a whole text is, or begins."""
    reader = ObjectText()
    return reader.value(reader.take(text))
