"""Formats with a call's name, followed by its arguments as JSON."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...grammar.lark import Lark
from ..interface import Parser, Tool
from ..markers import scanner
from .json_reader import arguments
from .layout import LaidOut, either, free
from .layout import arguments as arguments_grammar
from .machine import Machine, let_go, marked
from .output import Output
from .reader import Reader, Steps


class Header(NamedTuple):
    """The header before a call's arguments."""

    name: str
    id: str | None = None


class NamedCalls(LaidOut, frozen=True, kw_only=True):
    """A :class:`~.format.ToolFormat`."""

    calls: tuple[str, ...]
    """Markers in front of a name; the layout's calls begin behind the first."""
    header_ends: tuple[str, ...]
    header: Callable[[str], Header | None]
    """Parses the text between marker and arguments."""
    section: tuple[str, ...] = ()
    """Markers in front of one call or more."""
    section_ends: tuple[str, ...] = ()
    fence: tuple[str, ...] = ()
    """Optional text between a header and its arguments, and behind them, besides ``ends``."""
    ends: tuple[str, ...] = ()
    """End markers of a call."""
    written: str = ""
    """The grammar's text between a name and its arguments, if it is not the first of ``header_ends``."""
    named: tuple[str, str] = ("", "")
    """The grammar's text before a name and behind it."""
    identified: str = ""
    """The grammar's pattern of an id, behind a name, or before everything if no text follows a name."""
    special: frozenset[str] = frozenset()

    @property
    def markers(self) -> frozenset[str]:
        return self.special | {*self.calls, *self.header_ends, *self.section, *self.section_ends, *self.ends} - {"\n"}

    def parser(self, tools: Sequence[Tool]) -> Parser:
        return Machine(self._read)

    def free_grammar(self, lark: Lark, tools: Sequence[Tool]) -> str:
        return free(lark, self.layout, either(lark, tools, self._one), (*self.section, *self.calls)[0])

    def _one(self, lark: Lark, tool: Tool) -> str:
        in_front, behind = self.named
        before = self.written or self.header_ends[0]
        id = [lark.regex(self.identified)] if self.identified else []
        if behind or not id:
            head = [lark.literal(in_front + tool.name + behind), *id, lark.literal(before)]
        else:
            head = [*id, lark.literal(in_front + tool.name + before)]
        return " ".join([*head, arguments_grammar(lark, tool)])

    def _read(self, reader: Reader, output: Output) -> Steps[None]:
        def behind(marker: str) -> Steps[bool]:
            parts: list[str] = []
            if not (yield from reader.until(scanner(self.header_ends), parts.append)):
                return False
            header = self.header("".join(parts))
            if header is None:
                return False
            yield from named_call(reader, output, header, self.fence, self.ends)
            return True

        strays = frozenset({*self.ends, *self.section_ends})
        found = scanner((*self.calls, *self.section, *strays))
        yield from marked(reader, output, found, behind, dropped=frozenset(self.section), strays=strays)


def named_call(
    reader: Reader, output: Output, header: Header, fence: tuple[str, ...], ends: tuple[str, ...]
) -> Steps[None]:
    """The rest of a call whose header has been read."""
    reader.forget()
    output.start(*header)
    char = yield from reader.space()
    if fence and (yield from reader.accept(*fence)):
        char = yield from reader.space()
    if not char:
        return
    if char in {"{", '"'}:
        if not (yield from arguments(reader, output.arguments)):
            return
    else:
        yield from reader.accept("null")
        output.arguments("{}")
    output.end()
    reader.keep()
    yield from reader.space()
    for closers in (fence, ends):
        if closers and (yield from reader.accept(*closers)):
            reader.keep()
            yield from reader.space()
    let_go(reader, output)
