"""FunctionGemma's and Gemma 4's formats: ``call:name{key:value,…}`` with strings between tokens of their own."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from stentor.protocols.openai.tools import CUSTOM_INPUT

from ...grammar.lark import ANY_TEXT, Lark
from ..interface import Parser, Tool
from ..markers import scanner
from .json_reader import escaped, is_json, json_value
from .layout import LaidOut, Layout, Signs, either, free, members, quoted_input
from .machine import Machine, marked
from .output import Output
from .python_reader import word
from .reader import WHITESPACE, Reader, Sink, Steps
from .schemas import STRING, Arguments, ToolArguments, converted, texts_of
from .text_values import string_conditions

MAX_DEPTH: Final = 32
MAX_BARE: Final = 512
"""Characters of a value without tokens around it."""
_KEY: Final = re.compile(r"[^:{}\[\],\s<]")
_BARE: Final = re.compile(r"[^{}\[\],<]")
_CONSTANTS: Final = {"None": "null", "True": "true", "False": "false"}
_NAME: Final = re.compile(r"[^{\s<]")


class GemmaCalls(LaidOut, frozen=True, kw_only=True):
    """A :class:`~.format.ToolFormat`."""

    begin: str
    end: str
    quote: str
    """On both sides of a string."""

    @property
    def markers(self) -> frozenset[str]:
        return frozenset({self.begin, self.end, self.quote})

    def parser(self, tools: Sequence[Tool]) -> Parser:
        arguments = ToolArguments(tools)
        return Machine(lambda reader, output: _Reading(self, arguments, reader, output).read())

    def free_grammar(self, lark: Lark, tools: Sequence[Tool]) -> str:
        return free(lark, self.layout, either(lark, tools, self._one), self.begin)

    def _one(self, lark: Lark, tool: Tool) -> str:
        if tool.grammar is not None:
            return f'{lark.literal(f"{tool.name}{{{CUSTOM_INPUT}:")} {quoted_input(lark, tool.grammar)} "}}"'
        return f"{lark.literal(tool.name)} {_Writing(self, lark, tool).arguments()}"


class _Writing:
    """The grammar of one tool's arguments."""

    def __init__(self, format: GemmaCalls, lark: Lark, tool: Tool) -> None:
        self._quote = format.quote
        self._lark = lark
        self._tool = tool
        self._arguments = Arguments(tool.parameters)
        self._known: dict[int, str] = {}
        """Values by the identity of their schema, which may contain itself."""

    def arguments(self) -> str:
        return self._object(self._tool.parameters or {}, 0)

    def _object(self, schema: Mapping[str, Any], depth: int) -> str:
        known, needed, names = self._arguments.members(schema)
        items = [
            (f"{self._lark.literal(name + ':')} {self._value(known.get(name), depth)}", name in needed)
            for name in names
        ]
        return f'"{{" {members(self._lark, items, ",")} "}}"'

    def _value(self, schema: Any, depth: int) -> str:
        if id(schema) not in self._known:
            self._known[id(schema)] = self._lark.forward()
            self._lark.define(self._known[id(schema)], self._written(schema, depth))
        return self._known[id(schema)]

    def _written(self, schema: Any, depth: int) -> str:
        lark, types, inner = self._lark, self._arguments.types_of(schema), self._arguments.resolved(schema)
        if (texts := texts_of(inner)) is not None:
            return f"( {' | '.join(lark.literal(f'{self._quote}{text}{self._quote}') for text in texts)} )"
        if "string" in types or depth >= MAX_DEPTH // 4:
            text = lark.text_until(self._quote, " & ".join([ANY_TEXT, *string_conditions(inner)]))
            return f"{lark.literal(self._quote)} {text}"
        if "object" in types:
            return self._object(inner, depth + 1)
        if "array" in types:
            return self._array(inner, depth)
        return lark.json(self._arguments.whole(inner), f"tools.{self._tool.name}.parameters", closed=True)

    def _array(self, schema: Mapping[str, Any], depth: int) -> str:
        item = self._value(schema.get("items"), depth + 1)
        least, most = schema.get("minItems"), schema.get("maxItems")
        low = least if isinstance(least, int) and least > 0 else 0
        if most == 0:
            return '"[" "]"'
        further = f'( "," {item} ){{{max(low - 1, 0)},{max(most - 1, 0) if isinstance(most, int) else ""}}}'
        return f'"[" {item} {further} "]"' if low else f'"[" ( {item} {further} )? "]"'


class _Reading:
    def __init__(self, format: GemmaCalls, tools: ToolArguments, reader: Reader, output: Output) -> None:
        self._format = format
        self._tools = tools
        self._reader = reader
        self._output = output
        self._in_quotes = False
        """The tool is given text that is written as JSON."""

    def read(self) -> Steps[None]:
        begin, end = self._format.begin, self._format.end
        yield from marked(self._reader, self._output, scanner((begin, end)), self._call, strays=frozenset({end}))

    def _call(self, _: str) -> Steps[bool]:
        reader, output = self._reader, self._output
        yield from reader.space()
        if not (yield from reader.accept("call:", ":")):  # Gemma 4 may omit the word
            return False
        yield from reader.space()
        name = yield from word(reader, _NAME)
        if not name or (yield from reader.space()) != "{":
            return False
        reader.forget()
        output.start(name)
        self._in_quotes = self._tools.in_quotes(name)
        if (yield from self._mapping(output.arguments, self._tools.of(name), 0)):
            output.end()
        return True

    def _mapping(self, sink: Sink, arguments: Arguments | None, depth: int) -> Steps[bool]:
        reader = self._reader
        yield from reader.character()
        opening = "{"
        while True:
            char = yield from reader.space()
            if char == "}":
                yield from reader.character()
                sink("{}" if opening == "{" else "}")
                return True
            if char == "," and opening != "{":
                yield from reader.character()
                yield from reader.space()
            key = yield from self._key()
            if not key:
                return False
            sink(f'{opening}"{escaped(key)}":')
            opening = ","
            types = arguments.types(key) if arguments is not None else STRING
            as_text = arguments is not None and arguments.declared(key) == STRING
            if not (yield from self._value(sink, types, depth, as_text=as_text)):
                return False

    def _key(self) -> Steps[str]:
        reader = self._reader
        yield from reader.space()
        if (yield from reader.accept(self._format.quote)):
            parts: list[str] = []
            reader.keep()
            yield from reader.until(scanner((self._format.quote,)), parts.append)
            reader.forget()
            key = "".join(parts)
        else:
            key = yield from word(reader, _KEY)
        yield from reader.space()
        return key if (yield from reader.accept(":")) else ""

    def _value(self, sink: Sink, types: frozenset[str], depth: int, *, as_text: bool = False) -> Steps[bool]:
        """``as_text``: the schema says that the value is a string, also where the model writes a number."""
        reader, format = self._reader, self._format
        char = yield from reader.space()
        if depth > MAX_DEPTH:
            return False
        if (yield from reader.accept(format.quote)):
            return (yield from self._string(sink, types))
        if char == '"' and self._in_quotes and depth == 0:
            return (yield from json_value(reader, sink))
        if char == "{":
            return (yield from self._mapping(sink, None, depth + 1))
        if char == "[":
            return (yield from self._sequence(sink, depth))
        bare: list[str] = []
        while len(bare) < MAX_BARE and (char := (yield from reader.peek())) and _BARE.match(char):
            bare.append((yield from reader.character()))
        text = "".join(bare).strip(WHITESPACE)
        if not text or not char:
            return False
        text = _CONSTANTS.get(text, text)
        as_text = as_text and text != "null"
        sink(text if is_json(text) and not as_text else json.dumps(text, ensure_ascii=False))
        return True

    def _string(self, sink: Sink, types: frozenset[str]) -> Steps[bool]:
        reader, quotes = self._reader, scanner((self._format.quote,))
        if types == STRING:
            sink('"')
            whole = bool((yield from reader.until(quotes, lambda text: sink(escaped(text)))))
            if whole:
                sink('"')
            return whole
        parts: list[str] = []
        reader.keep()
        whole = bool((yield from reader.until(quotes, parts.append)))
        reader.forget()
        if whole:
            sink(converted("".join(parts), types))
        return whole

    def _sequence(self, sink: Sink, depth: int) -> Steps[bool]:
        reader = self._reader
        yield from reader.character()
        opening = "["
        while True:
            char = yield from reader.space()
            if char == "]":
                yield from reader.character()
                sink("[]" if opening == "[" else "]")
                return True
            if char == "," and opening != "[":
                yield from reader.character()
            sink(opening)
            opening = ","
            if not (yield from self._value(sink, STRING, depth + 1)):
                return False


def _gemma(name: str, begin: str, end: str, quote: str) -> GemmaCalls:
    layout = Layout(before=f"{begin}call:", after=end)
    return GemmaCalls(name=name, layout=layout, begin=begin, end=end, quote=quote, signs=(Signs((begin,)),))


FORMATS: Final = (
    _gemma("functiongemma", "<start_function_call>", "<end_function_call>", "<escape>"),
    _gemma("gemma4", "<|tool_call>", "<tool_call|>", '<|"|>'),
)
