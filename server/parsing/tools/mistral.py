"""Mistral's formats behind one marker: an array of objects up to tokenizer 7, a name and arguments from 11 on."""

import re
from collections.abc import Sequence
from typing import Final

from ..interface import Parser, Tool
from ..markers import scanner
from .call_objects import Keys
from .json_calls import JsonCalls, json_calls
from .layout import Layout, Signs
from .machine import Machine, marked
from .named import Header, NamedCalls, named_call
from .output import Output
from .reader import Reader, Steps

_CALLS: Final = "[TOOL_CALLS]"
_ARGUMENTS: Final = "[ARGS]"
_ID: Final = "[CALL_ID]"
_NAME: Final = re.compile(r"[^\[{\s]+")


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

    yield from marked(reader, output, scanner((_CALLS,)), behind)


class _Named(NamedCalls, frozen=True):
    def parser(self, tools: Sequence[Tool]) -> Parser:
        return Machine(_read)


class _Array(JsonCalls, frozen=True):
    def parser(self, tools: Sequence[Tool]) -> Parser:
        return Machine(_read)


FORMATS: Final = (
    # both are read, and each is written by one
    _Named(
        name="mistral",
        layout=Layout(before=_CALLS),
        calls=(_CALLS,),
        header_ends=(_ARGUMENTS,),
        header=Header,
        special=frozenset({_ID}),
        signs=(Signs((_CALLS, _ARGUMENTS)),),
    ),
    _Array(
        name="mistral_array",
        layout=Layout(opening=f"{_CALLS}[", between=", ", closing="]"),
        begins=(_CALLS,),
        special=frozenset({_ARGUMENTS, _ID}),
        signs=(Signs((_CALLS,), (_ARGUMENTS,)),),
    ),
)
