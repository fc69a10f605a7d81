"""Forbids repeated keys in JSON objects, which no grammar can do for properties whose names it does not know.

The text is scanned as it is drawn. Outside an object everything up to a ``{`` is skipped, and text that is not JSON
leaves the object again, so arguments of tool calls are found within any markers. Keys are compared as spelled, without
decoding escapes.
"""

import re
from collections.abc import Sequence
from enum import Enum, auto
from typing import Final

from .token_sets import set_of

_SPACE: Final = b" \t\r\n"
_SCALAR: Final = frozenset(b"+-.0123456789truefalsnE")
_UP_TO_QUOTE: Final = re.compile(rb'((?:[^"\\]|\\.)*)"', re.DOTALL)
_QUOTED: Final = re.compile(rb'"((?:[^"\\]|\\.)*)(?=")', re.DOTALL)


class KeyTokens:
    """The tokens of a vocabulary that may end a key, indexed by the part of the key that they hold."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.texts: Final = tokens
        self.endings: Final[dict[bytes, list[int]]] = {}
        """Tokens by the text before their first quotation mark."""
        self.holders: Final[dict[bytes, list[int]]] = {}
        """Tokens by the text between two of their quotation marks."""
        for token, text in enumerate(tokens):
            if b'"' in text and (found := _UP_TO_QUOTE.match(text)) is not None:
                self.endings.setdefault(found[1], []).append(token)
                for name in set(_QUOTED.findall(text)):
                    self.holders.setdefault(name, []).append(token)
        self.held: Final = frozenset(self.holders)


class _At(Enum):
    """The state of the JSON scanner: what it expects next."""

    OUTSIDE = auto()
    FIRST_KEY = auto()
    """Or the end of the object."""
    KEY = auto()
    IN_KEY = auto()
    COLON = auto()
    VALUE = auto()
    IN_STRING = auto()
    IN_SCALAR = auto()
    COMMA = auto()
    """Or the end of the enclosing object or list."""


class ObjectKeys:
    """Scans one text."""

    __slots__ = ("_at", "_escaped", "_key", "_open", "_tokens")

    def __init__(self, tokens: KeyTokens) -> None:
        self._tokens = tokens
        self._at = _At.OUTSIDE
        self._open: list[set[bytes] | None] = []
        """The keys of each open object; None for a list."""
        self._key = bytearray()
        self._escaped = False

    def copy(self) -> "ObjectKeys":
        twin = ObjectKeys(self._tokens)
        twin._at, twin._escaped = self._at, self._escaped
        twin._open = [None if keys is None else set(keys) for keys in self._open]
        twin._key = bytearray(self._key)
        return twin

    def take(self, token: int) -> bool:
        """Advance by a token. Returns whether it ended a key that its object has already."""
        repeated = False
        for byte in self._tokens.texts[token]:
            repeated |= self._step(byte)
        return repeated

    def repeating(self, size: int) -> int:
        """Tokens that would end a repeated key, as a set of :mod:`.token_sets`."""
        found: set[int] = set()
        if self._at is _At.IN_KEY and not self._escaped:
            drawn = bytes(self._key)
            for key in self._open[-1] or ():
                if key.startswith(drawn):
                    found.update(self._tokens.endings.get(key[len(drawn) :], ()))
        held, holders = self._tokens.held, self._tokens.holders
        for token in {token for keys in self._open if keys for key in keys & held for token in holders[key]} - found:
            if self.copy().take(token):
                found.add(token)
        return set_of(found, size) if found else 0

    def _step(self, byte: int) -> bool:
        at = self._at
        if at is _At.IN_KEY or at is _At.IN_STRING:
            return self._in_quotes(byte)
        if byte in _SPACE:
            if at is _At.IN_SCALAR:
                self._at = _At.COMMA
            return False
        keys = self._open[-1] if self._open else None
        match at, chr(byte):
            case _At.FIRST_KEY | _At.KEY, '"':
                self._key.clear()
                self._at = _At.IN_KEY
            case _At.COLON, ":":
                self._at = _At.VALUE
            case _At.VALUE, '"':
                self._at = _At.IN_STRING
            case _At.VALUE | _At.OUTSIDE, "{":
                self._open.append(set())
                self._at = _At.FIRST_KEY
            case _At.VALUE, "[":
                self._open.append(None)
            case (_At.VALUE | _At.IN_SCALAR | _At.COMMA, "]") if self._open and keys is None:
                self._end()
            case (_At.FIRST_KEY | _At.IN_SCALAR | _At.COMMA, "}") if keys is not None:
                self._end()
            case _At.IN_SCALAR | _At.COMMA, ",":
                self._at = _At.VALUE if keys is None else _At.KEY
            case _At.VALUE | _At.IN_SCALAR, _ if byte in _SCALAR:
                self._at = _At.IN_SCALAR
            case _:
                self._leave(byte)
        return False

    def _in_quotes(self, byte: int) -> bool:
        """Advance by a byte of a key or a string."""
        in_key = self._at is _At.IN_KEY
        if byte < 0x20:
            self._leave(byte)
            return False
        if byte == ord('"') and not self._escaped:
            self._at = _At.COLON if in_key else _At.COMMA
            return in_key and self._add()
        self._escaped = byte == ord("\\") and not self._escaped
        if in_key:
            self._key.append(byte)
        return False

    def _add(self) -> bool:
        keys, key = self._open[-1], bytes(self._key)
        assert keys is not None, "a list has no keys"
        repeated = key in keys
        keys.add(key)
        return repeated

    def _end(self) -> None:
        self._open.pop()
        self._at = _At.COMMA if self._open else _At.OUTSIDE

    def _leave(self, byte: int) -> None:
        """Leave all objects: the text was not JSON."""
        self._open.clear()
        self._escaped = False
        self._at = _At.OUTSIDE
        if byte == ord("{"):
            self._step(byte)
