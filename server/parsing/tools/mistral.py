"""Mistral's formats behind one marker: an array of objects up to tokenizer 7, a name and arguments from 11 on."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ...grammar.lark import Lark
from ..interface import Parser, Tool
from .call_objects import Keys
from .json_calls import JsonCalls, json_calls
from .layout import Layout
from .machine import Machine, marked
from .named import Header, NamedCalls, named_call
from .output import Output
from .reader import MarkerScanner, Reader, Steps

_CALLS: Final = "[TOOL_CALLS]"
_ARGUMENTS: Final = "[ARGS]"
_ID: Final = "[CALL_ID]"
_NAME: Final = re.compile(r"[^\[{\s]+")
_MARKERS: Final = MarkerScanner((_CALLS,))

_ARRAY: Final = JsonCalls(
    name="mistral", layout=Layout(opening=f"{_CALLS}[", between=", ", closing="]"), begins=(_CALLS,)
)
_NAMED: Final = NamedCalls(
    name="mistral",
    layout=Layout(before=_CALLS),
    calls=(_CALLS,),
    header_ends=(_ARGUMENTS,),
    header=Header,
    written=(_ARGUMENTS, ""),
)


@dataclass(frozen=True)
class Mistral:
    """A :class:`~.format.ToolFormat` that reads both and writes one."""

    name: str
    written_format: JsonCalls | NamedCalls
    markers: frozenset[str] = frozenset({_CALLS, _ARGUMENTS, _ID})

    def parser(self, tools: Sequence[Tool]) -> Parser:
        return Machine(_read)

    def grammar(self, lark: Lark, tools: Sequence[Tool], *, parallel: bool) -> str:
        return self.written_format.grammar(lark, tools, parallel=parallel)

    def free_grammar(self, lark: Lark, tools: Sequence[Tool]) -> str:
        return self.written_format.free_grammar(lark, tools)

    def detects(self, template_source: str) -> bool:
        return "[TOOL_CALLS]" in template_source and (_ARGUMENTS in template_source) == (self.written_format is _NAMED)


def _read(reader: Reader, output: Output) -> Steps[None]:
    def behind(_: str) -> Steps[bool]:
        char = yield from reader.space()
        if char and char in "[{":
            return (yield from json_calls(reader, output, Keys(), ()))
        name: list[str] = []
        yield from reader.run(_NAME, name.append)
        id: list[str] = []
        if (yield from reader.accept(_ARGUMENTS, _ID)) == _ID:
            yield from reader.run(_NAME, id.append)
            yield from reader.accept(_ARGUMENTS)
        char = yield from reader.space()
        if not name or char not in {"{", '"', "["}:
            return False
        yield from named_call(reader, output, Header("".join(name), "".join(id) or None), (), ())
        return True

    yield from marked(reader, output, _MARKERS, behind)


MISTRAL: Final = Mistral("mistral", _NAMED)
MISTRAL_ARRAY: Final = Mistral("mistral_array", _ARRAY)
