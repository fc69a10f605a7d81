"""Formats whose calls are JSON objects with a name and arguments: single, in a row or in an array.

They differ in where the objects stand: behind a marker, or bare at the beginning of the answer.
"""

import json
from collections.abc import Sequence
from functools import cached_property, partial

import msgspec
from msgspec.structs import replace

from ...grammar.lark import Lark
from ..interface import Parser, Tool
from ..markers import scanner
from .call_objects import CallObject, Keys
from .layout import LaidOut, arguments, either, free, free_bare
from .machine import Machine, attempt, let_go, marked
from .output import Output
from .reader import Reader, Steps


class JsonCalls(LaidOut, frozen=True, kw_only=True, dict=True):
    """A :class:`~.format.ToolFormat`."""

    begins: tuple[str, ...] = ()
    """Markers that only calls follow; the grammar's layout begins with the first."""
    guesses: tuple[str, ...] = ()
    """Markers that other text may follow as well; the grammar does not constrain text behind them."""
    infixes: tuple[str, ...] = ()
    """Texts between a marker and the calls."""
    ends: tuple[str, ...] = ()
    bare: str = ""
    """Brackets that begin calls where they begin the answer."""
    within: str = ""
    """Brackets behind which a call is also looked for within text; it must name an existing tool."""
    wary: bool = False
    """Whether a bare object must name an existing tool, for models that also write such JSON as an answer."""
    dropped: frozenset[str] = frozenset()
    """Markers that are no part of any text."""
    special: frozenset[str] = frozenset()
    """Special tokens of which markers are made."""
    keys: Keys = msgspec.field(default_factory=Keys)
    written: tuple[str, str] = ("name", "arguments")
    """The keys that the grammar writes."""

    @property
    def markers(self) -> frozenset[str]:
        return self.special | {*self.begins, *self.ends} | self.dropped

    def parser(self, tools: Sequence[Tool]) -> Parser:
        names = frozenset(tool.name for tool in tools)
        guessed = replace(self.keys, certain=False, offered=names if self.wary else None)
        return Machine(partial(self._read, guessed, replace(guessed, offered=names)))

    def free_grammar(self, lark: Lark, tools: Sequence[Tool]) -> str:
        one = either(lark, tools, self._one)
        if self.bare and not (self.layout.opening + self.layout.before).startswith(self.begins):
            return free_bare(lark, self.layout, one, self.bare)
        return free(lark, self.layout, one, self.begins[0], self.bare)

    def _one(self, lark: Lark, tool: Tool) -> str:
        name, key = self.written
        if self.keys.keyed:
            head = f"{{{json.dumps(tool.name, ensure_ascii=False)}: "
            return f'{lark.literal(head)} {arguments(lark, tool)} "}}"'
        head = f'{{"{name}": {json.dumps(tool.name, ensure_ascii=False)}, "{key}": '
        return f'{lark.literal(head)} {arguments(lark, tool)} "}}"'

    @cached_property
    def _strays(self) -> frozenset[str]:
        return frozenset(self.ends) - {*self.begins, *self.guesses}

    def _read(self, guessed: Keys, offered: Keys, reader: Reader, output: Output) -> Steps[None]:
        def behind(marker: str) -> Steps[bool]:
            if marker in self.within:
                reader.unread(marker)
                return (yield from json_calls(reader, output, offered, ()))
            if self.infixes:
                yield from reader.accept(*self.infixes)
            keys = self.keys if marker in self.begins else guessed
            return (yield from json_calls(reader, output, keys, self.ends))

        def bare(_: str) -> Steps[bool]:
            char = yield from reader.space()
            if alike and (marker := (yield from reader.accept(*alike))):
                return (yield from behind(marker))
            return bool(char) and char in self.bare and (yield from json_calls(reader, output, guessed, ()))

        alike = [begin for begin in self.begins if begin[0] in self.bare]
        if self.bare:
            yield from attempt(reader, output, "", bare)
        guesses = (*self.guesses, *self.within)
        found = scanner((*self.begins, *guesses, *self._strays, *self.dropped))
        yield from marked(reader, output, found, behind, dropped=self.dropped, strays=self._strays, guesses=guesses)


def json_calls(reader: Reader, output: Output, keys: Keys, ends: tuple[str, ...]) -> Steps[bool]:
    """Reads calls that come next: objects or an array of them, and the marker that ends them.

    False if there is none. The reader must be keeping text.
    """
    between = ",;}" if ends else ",;"  # a bracket too many, in front of the end
    char = yield from reader.space()
    array = char == "["
    if array:
        yield from reader.character()
        yield from reader.space()
    if not (yield from CallObject(reader, output, keys).read()):
        return False
    while True:
        reader.keep()
        char = yield from reader.space()
        while char and char in between:
            yield from reader.character()
            char = yield from reader.space()
        if char == "{":
            if not (yield from CallObject(reader, output, keys).read()):
                let_go(reader, output)
                return True
            continue
        if char == "]" and array:
            yield from reader.character()
            array = False
            continue
        if ends and (yield from reader.accept(*ends)):
            reader.forget()
        else:
            let_go(reader, output)
        return True
