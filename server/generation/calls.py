"""Adapts tool calls to a request: at most one call, and plain text for custom tools."""

import re
from collections.abc import Set as AbstractSet
from typing import Final

from stentor.protocols.openai.tools import CUSTOM_INPUT

from ..parsing.interface import CallArguments, CallEnd, CallStart, Content, Parser, Piece

_OPENING: Final = re.compile(r'\s*\{\s*"' + CUSTOM_INPUT + r'"\s*:\s*"')
_LONGEST_OPENING: Final = 256
"""Characters searched for the beginning of an input; JSON that begins with more white space is left as it is."""
_PLAIN: Final = re.compile(r'[^"\\]+')
_NO_CHARACTER: Final = "\ufffd"
_ESCAPES: Final = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class CallFilter:
    """A parser around a choice's own one."""

    def __init__(self, inner: Parser, custom: AbstractSet[str], *, parallel: bool, alone: bool = False) -> None:
        """``custom``: names of custom tools. Without ``parallel``, everything after the first call is dropped.

        ``alone``: only calls were requested, so other text is the beginning of a call that was cut off.
        """
        self._inner = inner
        self._custom = custom
        self._parallel = parallel
        self._alone = alone
        self._calls = 0
        self._input: InputText | None = None

    @property
    def thinking(self) -> bool:
        return self._inner.thinking

    def push(self, text: str) -> list[Piece]:
        return self._filtered(self._inner.push(text))

    def finish(self, *, cut: bool = False) -> list[Piece]:
        pieces = self._filtered(self._inner.finish(cut=cut))
        if self._input is not None and (rest := self._input.finish()):
            self._keep(CallArguments(rest), pieces)
        return pieces

    def _filtered(self, pieces: list[Piece]) -> list[Piece]:
        kept: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, CallStart):
                self._calls += 1
                self._input = InputText() if piece.name in self._custom else None
            elif isinstance(piece, CallEnd) and self._input is not None:
                if rest := self._input.finish():
                    self._keep(CallArguments(rest), kept)
                self._input = None
            elif isinstance(piece, CallArguments) and self._input is not None:
                text = self._input.push(piece.text)
                if not text:
                    continue
                piece = CallArguments(text)
            self._keep(piece, kept)
        return kept

    def _keep(self, piece: Piece, kept: list[Piece]) -> None:
        if isinstance(piece, CallStart | CallArguments | CallEnd):
            if self._parallel or self._calls < 2:
                kept.append(piece)
        elif not (self._alone and isinstance(piece, Content)):
            kept.append(piece)


class InputText:
    """The text in ``{"input": "…"}`` as its JSON comes, piece by piece; other JSON passes as it is."""

    def __init__(self) -> None:
        self._held = ""
        """Text that cannot be interpreted yet: the opening, or an escape."""
        self._inside = False
        self._raw = False
        self._ended = False

    def push(self, text: str) -> str:
        if self._raw:
            return text
        if self._ended:
            return ""
        self._held += text
        if not self._inside:
            opening = _OPENING.match(self._held, 0, _LONGEST_OPENING)
            if opening is None:
                if len(self._held) < _LONGEST_OPENING and _may_open(self._held):
                    return ""
                self._raw = True
                return self.finish()
            self._inside = True
            self._held = self._held[opening.end() :]
        return self._decoded()

    def finish(self) -> str:
        """The rest, if the JSON ends early or was not the expected object."""
        held, self._held = self._held, ""
        return "" if self._inside else held

    def _decoded(self) -> str:
        pieces = []
        at = 0
        while at < len(self._held):
            plain = _PLAIN.match(self._held, at)
            if plain is not None:
                pieces.append(plain[0])
                at = plain.end()
            elif self._held[at] == '"':
                self._ended = True
                break
            else:
                length, text = _escape(self._held, at)
                if not length:
                    break
                pieces.append(text)
                at += length
        self._held = "" if self._ended else self._held[at:]
        return "".join(pieces)


def _may_open(text: str) -> bool:
    """Whether more text could make it the opening."""
    bare = re.sub(r"\s+", "", text)
    return f'{{"{CUSTOM_INPUT}":"'.startswith(bare)


def _escape(text: str, at: int) -> tuple[int, str]:
    """Length and meaning of the escape that begins at ``at``; 0 while it is not whole."""
    if len(text) < at + 2:
        return 0, ""
    if text[at + 1] != "u":
        return 2, _ESCAPES.get(text[at + 1], text[at + 1])
    unit = _unit(text, at)
    if unit is None:
        return 0, ""
    if not 0xD800 <= unit < 0xDC00:
        return 6, _NO_CHARACTER if 0xDC00 <= unit < 0xE000 else chr(unit)
    rest = text[at + 6 : at + 8]
    if not "\\u".startswith(rest):
        return 6, _NO_CHARACTER
    low = _unit(text, at + 6) if rest == "\\u" else None
    if low is None:
        return 0, ""
    if not 0xDC00 <= low < 0xE000:
        return 6, _NO_CHARACTER
    return 12, chr(0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00))


def _unit(text: str, at: int) -> int | None:
    digits = text[at + 2 : at + 6]
    if len(digits) < 4:
        return None
    try:
        return int(digits, 16)
    except ValueError:
        return ord(_NO_CHARACTER)
