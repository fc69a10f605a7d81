"""Formats that write each argument between tags of its own, as text that the tool's schema makes JSON of."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final

from ...grammar.lark import ANY_TEXT, Lark
from ..interface import Parser, Tool
from ..markers import MarkerScanner, scanner
from .json_reader import escaped, json_value
from .layout import LaidOut, either, free, quoted_input
from .machine import Machine, marked
from .output import Output
from .python_reader import python_value
from .reader import WHITESPACE, Reader, Steps, TooLongError, nothing
from .schemas import QUOTED, STRING, Arguments, ToolArguments, converted, texts_of
from .text_values import string_conditions, without

JSON: Final = frozenset({"json"})
"""Types of values that are JSON of any type."""
MAX_VALUE: Final = 1 << 20
"""Characters of an argument that is not a string; longer ones are taken as strings."""


class Markup(LaidOut, frozen=True, kw_only=True, dict=True):
    """A :class:`~.format.ToolFormat`. Markers end where the name or value that follows them begins."""

    call: str
    """Behind which the layout's calls begin; they end with ``call_end``."""
    name_ends: tuple[str, ...] = ('">',)
    parameter: str
    key_ends: tuple[str, ...] = ('">',)
    value_end: str
    call_end: str
    section: str = ""
    """In front of one call or more, where the format has such."""
    section_end: str = ""
    value: str = ""
    """Between the end of a key and its value."""
    between: tuple[str, ...] = ()
    """Other text before a call in its section, and behind it."""
    trim: bool = False
    """Whether values are on lines of their own."""
    as_json: frozenset[str] = frozenset()
    """Ends of a key that say: the value is JSON."""
    as_string: frozenset[str] = frozenset()
    verbatim: tuple[str, str] | None = None
    """Markers around a value that may contain the markers of the format."""
    wrappers: frozenset[str] = frozenset()
    """Keys under which models put an object of all arguments, although no tool has such a key."""
    written: tuple[str, str, str] = ('">\n', '">', "\n")
    """The grammar's text behind a name, behind a key, and behind a value."""
    key_end_for: Callable[[frozenset[str]], str] | None = None
    """The grammar's text behind a key, by the types of its value; None: the same for all."""
    numbered: str = ""
    """The grammar's text behind the number of a call, which follows what is behind its name; empty: calls have none."""
    type_tags: tuple[str, str] | None = None
    """Markers around the type of a value, between its key and it. The tool's schema decides instead."""
    doubled: bool = False
    """Whether a name may be written twice, with a dot between."""
    attributes: bool = False
    """Whether names and keys are attributes, in which ``&`` and ``"`` are written as in XML."""
    special: frozenset[str] = frozenset()

    @property
    def markers(self) -> frozenset[str]:
        texts = {self.call, self.call_end, self.section, self.section_end, self.parameter, self.value_end, self.value}
        return (self.special | texts | {*self.between, *(self.type_tags or ())}) - {""}

    def parser(self, tools: Sequence[Tool]) -> Parser:
        arguments = ToolArguments(tools)
        return Machine(lambda reader, output: _Reading(self, arguments, reader, output).read())

    def free_grammar(self, lark: Lark, tools: Sequence[Tool]) -> str:
        marker = self.section or self.call
        return free(lark, self.layout, either(lark, tools, self._one), marker)

    def _one(self, lark: Lark, tool: Tool) -> str:
        behind_name, behind_key, behind_value = self.written
        arguments = Arguments(tool.parameters)
        spell = _attribute if self.attributes else str
        parts = [lark.literal(f"{spell(tool.name)}{behind_name}")]
        if self.numbered:
            parts += [lark.regex("[1-9][0-9]{0,2}"), lark.literal(self.numbered)]
        for name in arguments.names:
            types = JSON if tool.grammar is not None else arguments.types(name)
            key_end = behind_key if self.key_end_for is None else self.key_end_for(types)
            key = lark.literal(f"{self.parameter}{spell(name)}{key_end}")
            end = ("\n" if behind_key.endswith("\n") else "") + self.value_end
            one = f"{key} {self._value(lark, tool, arguments, name, end)} {lark.literal(behind_value)}"
            parts.append(one if name in arguments.required else f"( {one} )?")
        return " ".join([*parts, lark.literal(self.call_end)])

    def _value(self, lark: Lark, tool: Tool, arguments: Arguments, name: str, end: str) -> str:
        """One argument and the marker ``end`` behind it. A string is free text without its end marker."""
        schema = arguments.schema(name)
        if tool.grammar is not None:
            return f"{quoted_input(lark, tool.grammar)} {lark.literal(end)}"
        if (texts := texts_of(schema)) is not None:
            return f"( {' | '.join(lark.literal(text + end) for text in texts)} )"
        if "string" not in arguments.types(name):
            value = lark.json(arguments.whole(schema), f"tools.{tool.name}.parameters", closed=True)
            return f"{value} {lark.literal(end)}"
        conditions = [ANY_TEXT, *string_conditions(schema), without((self.parameter, self.call_end))]
        return lark.text_until(end, " & ".join(conditions))

    @cached_property
    def strays(self) -> frozenset[str]:
        """Markers that only occur behind calls."""
        return frozenset({self.call_end, self.section_end, *self.between} - {"", self.call})


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;")


class _Reading:
    def __init__(self, format: Markup, tools: ToolArguments, reader: Reader, output: Output) -> None:
        self._format = format
        self._tools = tools
        self._reader = reader
        self._output = output
        self._any = False
        self._in_quotes = False
        """The tool is given text that is written as JSON."""

    def read(self) -> Steps[None]:
        format = self._format
        found = scanner(frozenset({format.call, format.section, *format.strays} - {""}))
        yield from marked(self._reader, self._output, found, self._call, strays=format.strays)

    def _call(self, marker: str) -> Steps[bool]:
        format, reader = self._format, self._reader
        if marker == format.section:
            while True:
                yield from reader.space()
                met = yield from reader.accept(format.call, *format.between)
                if met == format.call:
                    break
                if not met:
                    return False
        parts: list[str] = []
        end = yield from reader.until(scanner((*format.name_ends, format.call_end)), parts.append)
        name = self._name(parts)
        if not end or not name or "\n" in name or name[0] == "{":
            return False
        first, dot, second = name.partition(".")
        if format.doubled and dot and first == second:
            name = first
        reader.forget()
        self._output.start(name)
        self._any = False
        self._in_quotes = self._tools.in_quotes(name)
        try:
            yield from self._arguments(self._tools.of(name), end)
        except TooLongError:
            return False
        return True

    def _arguments(self, arguments: Arguments, met: str) -> Steps[None]:
        """Up to the end of the call; ``met`` is the marker behind its name."""
        format, reader = self._format, self._reader
        ends = (format.call_end, *((format.section_end,) if format.section_end else ()))  # models forget the first
        while True:
            met = met.lstrip("\n")
            if met not in {format.parameter, *ends}:
                yield from reader.space()
                met = yield from reader.accept(format.parameter, *ends)
                if not met:
                    met = yield from reader.until(scanner((format.parameter, *ends)), nothing)
            if not met:
                return
            if met in ends:
                self._output.arguments("}" if self._any else "{}")
                self._output.end()
                return
            parts: list[str] = []
            reader.keep()
            end = yield from reader.until(scanner(format.key_ends), parts.append)
            reader.forget()
            if not end:
                return
            if format.type_tags is not None:
                yield from reader.space()
                if (yield from reader.accept(format.type_tags[0])):
                    yield from reader.until(scanner(format.type_tags[1:]), nothing)
            if format.value:
                yield from reader.space()
                if not (yield from reader.accept(format.value)):
                    met = ""
                    continue
            key = self._name(parts)
            if key in format.wrappers and (yield from self._wrapped(key, arguments)):
                return
            self._output.arguments(f'{", " if self._any else "{"}"{escaped(key)}": ')
            self._any = True
            met = yield from self._value(self._types(key, end, arguments))

    def _name(self, parts: Sequence[str]) -> str:
        """What was written as a name or a key."""
        name = "".join(parts).strip()
        return name.replace("&quot;", '"').replace("&amp;", "&") if self._format.attributes else name

    def _types(self, key: str, end: str, arguments: Arguments) -> frozenset[str]:
        """The types of a value behind the marker ``end``. A schema that contradicts the marker decides."""
        declared = arguments.declared(key)
        if end in self._format.as_string:
            return STRING if "string" in declared else declared or STRING
        if end in self._format.as_json:
            return (declared - STRING) or (QUOTED if declared else JSON)
        return declared or STRING

    def _wrapped(self, key: str, arguments: Arguments) -> Steps[bool]:
        """Reads an object of all arguments, to the end of the call. False if the value is something else."""
        reader, output = self._reader, self._output
        if self._any or not arguments.names or key in arguments.properties or (yield from reader.space()) != "{":
            return False
        if (yield from python_value(reader, output.arguments)) and (
            yield from reader.until(scanner((self._format.call_end,)), nothing)
        ):
            output.end()
        return True

    def _value(self, types: frozenset[str]) -> Steps[str]:
        format, reader, output = self._format, self._reader, self._output
        ends = (format.value_end, format.parameter, format.call_end)
        value_ends = scanner((*ends, *(f"\n{end}" for end in ends)) if format.trim else ends)
        if format.trim:
            yield from reader.accept("\r\n", "\n")
        if self._in_quotes and (yield from reader.peek()) == '"':
            if not (yield from json_value(reader, output.arguments)):
                return ""
            return (yield from reader.until(value_ends, nothing))
        if format.verbatim is not None and (yield from reader.accept(format.verbatim[0])):
            return (yield from self._verbatim(types, format.verbatim[1], value_ends))
        if types == STRING:
            output.arguments('"')
            end = yield from reader.until(value_ends, lambda text: output.arguments(escaped(text)))
            if end:
                output.arguments('"')
            return end
        value = Value(output)
        if "string" not in types and (yield from reader.space()) in {"{", "["}:
            yield from json_value(reader, value.add)  # its strings may contain the end marker
        end = yield from reader.until(value_ends, value.add)
        if end:
            value.finish(types)
        return end

    def _verbatim(self, types: frozenset[str], close: str, value_ends: MarkerScanner) -> Steps[str]:
        reader, output, closing = self._reader, self._output, scanner((close,))
        if types == STRING:
            output.arguments('"')
            whole = yield from reader.until(closing, lambda text: output.arguments(escaped(text)))
            if whole:
                output.arguments('"')
        else:
            value = Value(output)
            whole = yield from reader.until(closing, value.add)
            if whole:
                value.finish(types)
        return (yield from reader.until(value_ends, nothing)) if whole else ""


class Value:
    """A value that is judged as a whole, unless it is too long for that."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._parts: list[str] = []
        self._length = 0

    def add(self, text: str) -> None:
        if self._length > MAX_VALUE:
            self._output.arguments(escaped(text))
            return
        self._parts.append(text)
        self._length += len(text)
        if self._length > MAX_VALUE:
            self._output.arguments('"' + escaped("".join(self._parts)))
            self._parts.clear()

    def finish(self, types: frozenset[str]) -> None:
        if self._length > MAX_VALUE:
            self._output.arguments('"')
        else:
            text = "".join(self._parts)
            self._output.arguments(converted(text if "string" in types else text.strip(WHITESPACE), types))
