"""The parser that all formats share: it runs a format's reading as far as the text goes."""

from collections.abc import Callable, Collection

from ..interface import Piece
from ..markers import MarkerScanner
from .output import Output
from .reader import Reader, Steps, TooLongError


class Machine:
    """A :class:`~..interface.Parser` around a generator, which returns once the reader has ended."""

    thinking = False

    def __init__(self, reading: Callable[[Reader, Output], Steps[None]]) -> None:
        self._reader = Reader()
        self._output = Output()
        self._steps: Steps[None] | None = reading(self._reader, self._output)

    def push(self, text: str) -> list[Piece]:
        """Reads more text; returns what it completes."""
        if not text or self._steps is None:
            return []
        self._reader.feed(text)
        return self._advance()

    def finish(self, *, cut: bool = False) -> list[Piece]:
        """Ends the text; returns what was held back. ``cut``: it was truncated."""
        if self._steps is None:
            return []
        self._reader.end(cut)
        pieces = self._advance()
        self._steps = None
        return pieces

    def _advance(self) -> list[Piece]:
        assert self._steps is not None
        try:
            next(self._steps)
        except StopIteration:
            self._steps = None
        return self._output.take()


def marked(
    reader: Reader,
    output: Output,
    markers: MarkerScanner,
    call: Callable[[str], Steps[bool]],
    *,
    dropped: frozenset[str] = frozenset(),
    strays: frozenset[str] = frozenset(),
    guesses: Collection[str] = (),
) -> Steps[None]:
    """Content up to a marker, then the output of ``call`` behind it, and so on.

    ``call`` gets the marker and returns whether a call began; if not, marker and text are content. ``dropped`` are
    markers that are removed from text. ``strays`` are end markers, which are removed behind a call. ``guesses`` are
    markers that other text follows as well.
    """
    while True:
        marker = yield from reader.until(markers, output.text)
        if not marker:
            if reader.left:
                let_go(reader, output)
            output.finish()
            return
        if marker in dropped:
            continue
        if marker in strays:
            if not output.calls:
                output.text(marker)
            continue
        yield from attempt(reader, output, marker, call, certain=marker not in guesses)


def attempt(
    reader: Reader, output: Output, before: str, call: Callable[[str], Steps[bool]], *, certain: bool = False
) -> Steps[bool]:
    """Tries to read a call behind ``before``; if that fails, all text read is content.

    ``certain``: ``before`` cannot mean anything else.
    """
    reader.keep(before)
    try:
        began = yield from call(before)
    except TooLongError:
        began = False
    if reader.cut and (began or certain):
        let_go(reader, output)
    elif began:
        reader.forget()
    else:
        output.text(reader.kept())
    return began


def let_go(reader: Reader, output: Output) -> None:
    """Releases kept text as content, unless the output was truncated while the text could have become part of a
    call."""
    if reader.cut:
        reader.drop()
        output.drop_space()
    else:
        output.text(reader.kept())
