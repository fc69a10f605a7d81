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
        """As :class:`~..interface.Parser` says."""
        if not text or self._steps is None:
            return []
        self._reader.feed(text)
        return self._advance()

    def finish(self, *, cut: bool = False) -> list[Piece]:
        """As :class:`~..interface.Parser` says."""
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
    """Content up to a marker, then what ``call`` reads behind it, and so on.

    ``call`` gets the marker and says whether a call began; where none did, marker and all are content. ``dropped``
    are markers that are no part of any text, ``strays`` those that only ends of calls are: none behind a call,
    ``guesses`` those that other things follow as well.
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
    """One try at a call behind ``before``; where it fails, all that was read is content.

    ``certain``: nothing else is meant by ``before``.
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
    """What was kept is content, unless the output was cut off while it could have become part of a call."""
    if reader.cut:
        reader.drop()
        output.drop_space()
    else:
        output.text(reader.kept())
