"""Incremental text for generators that yield when they need more of it.

Every method that may need more text is a generator; its result depends on the text, never on how it was cut. Text is
released once read, except while :meth:`Reader.keep` keeps it: text that turns out to be no call is content.
"""

import re
from collections.abc import Callable, Generator
from typing import Final, TypeAlias, TypeVar

from ..markers import MarkerScanner

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""Steps towards a result; each yield asks for more text."""
Sink: TypeAlias = Callable[[str], None]

MAX_KEPT: Final = 1 << 16
"""Characters that may be held back while it is open whether they are a call."""
WHITESPACE: Final = " \t\r\n"
_SPACE: Final = re.compile(r"[ \t\r\n]+")


def nothing(_: str) -> None:
    """A sink that discards text."""


class TooLongError(Exception):
    """More text would have to be held back than is allowed; the kept text has exactly ``MAX_KEPT`` characters."""


class Reader:
    """Text that arrives in pieces, read character by character."""

    __slots__ = ("_at", "_kept", "_kept_length", "_text", "cut", "ended")

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._kept: list[str] | None = None
        self._kept_length = 0
        self.ended = False
        self.cut = False
        """It has ended, and not because the model had said all."""

    def end(self, cut: bool) -> None:
        """No more text comes."""
        self.ended = True
        self.cut = cut

    def feed(self, text: str) -> None:
        """Appends text."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def keep(self, before: str = "") -> None:
        """Keeps text read from now on, behind ``before``, until :meth:`kept` or :meth:`forget`."""
        self._kept = [before]
        self._kept_length = len(before)

    def kept(self) -> str:
        """Text read since :meth:`keep`, which ends with this."""
        text = "".join(self._kept or ())
        self._kept = None
        return text

    def unread(self, text: str) -> None:
        """Takes back ``text``, which was read last and is all that is kept."""
        self._at -= len(text)
        self._kept = [""]
        self._kept_length = 0

    @property
    def left(self) -> bool:
        """There is text that was not read."""
        return self._at < len(self._text)

    def drop(self) -> None:
        """Discards all text, read or not."""
        self._kept = None
        self._at = len(self._text)

    def forget(self) -> None:
        """Discards the kept text and stops keeping."""
        self._kept = None

    def peek(self) -> Steps[str]:
        """The next character; the empty text at the end."""
        while self._at == len(self._text):
            if self.ended:
                return ""
            yield
        return self._text[self._at]

    def character(self) -> Steps[str]:
        """Reads the next character; the empty text at the end."""
        char = yield from self.peek()
        if char:
            self._take(self._at + 1)
        return char

    def space(self) -> Steps[str]:
        """Reads whitespace and returns the character behind it."""
        while True:
            char = yield from self.peek()
            if not char or char not in WHITESPACE:
                return char
            found = _SPACE.match(self._text, self._at)
            assert found is not None
            self._take(found.end())

    def run(self, pattern: re.Pattern[str], sink: Sink) -> Steps[None]:
        """Reads all characters that ``pattern``, a run of one class of them, matches."""
        while True:
            found = pattern.match(self._text, self._at)
            if found is not None and found.end() > self._at:
                sink(self._take(found.end()))
            if self._at < len(self._text) or self.ended:
                return
            yield

    def accept(self, *texts: str) -> Steps[str]:
        """Reads the longest of ``texts`` that comes next and returns it; the empty text where none does."""
        longest = max(map(len, texts))
        while True:
            ahead = self._text[self._at : self._at + longest]
            best = max((text for text in texts if ahead.startswith(text)), key=len, default="")
            if self.ended or not any(len(text) > len(ahead) and text.startswith(ahead) for text in texts):
                if best:
                    self._take(self._at + len(best))
                return best
            yield

    def until(self, markers: MarkerScanner, sink: Sink) -> Steps[str]:
        """Reads up to and with the first marker, which it returns; the empty text where none comes.

        A marker that is cut off is not read.
        """
        while True:
            found = markers.search(self._text, self._at)
            if found is not None:
                if found.start() > self._at:
                    sink(self._take(found.start()))
                self._take(found.end())
                return found.group()
            end = markers.held(self._text, self._at)
            if self.ended and not (self.cut and markers.all_but(self._text[end:])):
                end = len(self._text)
            if end > self._at:
                sink(self._take(end))
            if self.ended:
                return ""
            yield

    def _take(self, end: int) -> str:
        if self._kept is None:
            text = self._text[self._at : end]
            self._at = end
            return text
        over = self._kept_length + end - self._at - MAX_KEPT
        if over > 0:
            end -= over
        text = self._text[self._at : end]
        self._kept.append(text)
        self._kept_length += len(text)
        self._at = end
        if over > 0:
            raise TooLongError
        return text
