"""MiniMax-M3's format: each argument, member of an object and item of an array is an element of its own."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...grammar.lark import ANY_TEXT, Lark
from ..interface import Parser, Tool
from ..markers import scanner
from .json_reader import escaped, json_value
from .layout import LaidOut, Layout, Signs, either, free, quoted_input
from .machine import Machine, marked
from .markup import Value
from .output import Output
from .reader import Reader, Steps, TooLongError, nothing
from .schemas import STRING, Arguments, ToolArguments, texts_of
from .text_values import string_conditions, without

MAX_DEPTH: Final = 32
_CALL, _CALLS, _ITEM = "invoke", "tool_call", "item"
_NAME: Final = re.compile(r"[^\s<>/]([^<>]*[^\s<>])?")
"""A name that a tag can hold."""
_NOTES: Final = frozenset({"type", "title", "description", "default", "examples", "$defs", "definitions"})
_OBJECT: Final = _NOTES | {"properties", "required", "additionalProperties"}
_ARRAY: Final = _NOTES | {"items", "minItems", "maxItems"}


class NestedCalls(LaidOut, frozen=True, kw_only=True):
    """A :class:`~.format.ToolFormat`.

    An object's members are elements of their names, an array's items are elements named "item". Their types are those
    of the schema; without one they are text.
    """

    prefix: str
    """In front of every tag."""

    @property
    def markers(self) -> frozenset[str]:
        tags = (f"<{_CALLS}>", f"</{_CALLS}>")
        return frozenset({self.prefix, *tags, *(f"{self.prefix}{tag}" for tag in tags)})

    @property
    def call(self) -> str:
        """What the name of a call follows."""
        return f'{self.prefix}<{_CALL} name="'

    def element(self, name: str) -> tuple[str, str]:
        """Its tags."""
        return f"{self.prefix}<{name}>", f"{self.prefix}</{name}>"

    def parser(self, tools: Sequence[Tool]) -> Parser:
        arguments = ToolArguments(tools)
        return Machine(lambda reader, output: _Reading(self, arguments, reader, output).read())

    def free_grammar(self, lark: Lark, tools: Sequence[Tool]) -> str:
        return free(lark, self.layout, either(lark, tools, self._one), self.element(_CALLS)[0])

    def _one(self, lark: Lark, tool: Tool) -> str:
        name, end = lark.literal(f'{tool.name}">'), lark.literal(self.element(_CALL)[1])
        return f"{name} {_Writing(self, lark, tool).arguments()} {end}"


class _Writing:
    """The grammar of one tool's arguments. A schema that elements cannot hold is written as JSON."""

    def __init__(self, format: NestedCalls, lark: Lark, tool: Tool) -> None:
        self._format = format
        self._lark = lark
        self._tool = tool
        self._arguments = Arguments(tool.parameters)
        self._known: dict[tuple[int, str], str] = {}
        """Values by the identity of their schema and the tag behind them. A schema may contain itself."""

    def arguments(self) -> str:
        return self._members(self._arguments.root, 0)

    def _members(self, schema: Mapping[str, Any], depth: int) -> str:
        known, needed, names = self._arguments.members(schema)
        parts = ['""']
        for name in names:
            begin, end = self._format.element(name)
            one = f"{self._lark.literal(begin)} {self._value(known.get(name), end, depth)}"
            parts.append(one if name in needed else f"( {one} )?")
        return " ".join(parts)

    def _value(self, schema: Any, end: str, depth: int) -> str:
        """A value and the tag behind it."""
        inner = self._arguments.resolved(schema)
        if depth > MAX_DEPTH // 2:
            return self._json(inner, end)
        key = id(schema), end
        if key not in self._known:
            self._known[key] = self._lark.forward()
            self._lark.define(self._known[key], self._written(inner, end, depth))
        return self._known[key]

    def _written(self, inner: Mapping[str, Any], end: str, depth: int) -> str:
        lark, types = self._lark, self._arguments.types_of(inner)
        if self._tool.grammar is not None:
            return f"{quoted_input(lark, self._tool.grammar)} {lark.literal(end)}"
        if (texts := texts_of(inner)) is not None:
            return " | ".join(lark.literal(text + end) for text in texts)
        if "string" in types:
            conditions = [ANY_TEXT, *string_conditions(inner), without((f"{self._format.prefix}<",))]
            return lark.text_until(end, " & ".join(conditions))
        nested = None
        if types - {"null"} == {"object"}:
            nested = self._object(self._arguments.part(inner, "object"), depth)
        elif types - {"null"} == {"array"}:
            nested = self._array(self._arguments.part(inner, "array"), depth)
        if nested is None:
            return self._json(inner, end)
        null = f" | {lark.literal(f'null{end}')}" if "null" in types else ""
        return f"{nested} {lark.literal(end)}{null}"

    def _object(self, schema: Mapping[str, Any], depth: int) -> str | None:
        names = self._arguments.members(schema)[2]
        if not schema.keys() <= _OBJECT or schema.get("additionalProperties") or not all(map(_NAME.fullmatch, names)):
            return None
        return self._members(schema, depth + 1)

    def _array(self, schema: Mapping[str, Any], depth: int) -> str | None:
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        known = isinstance(least, int) and least >= 0 and (most is None or (isinstance(most, int) and most >= least))
        if not known or not schema.keys() <= _ARRAY or not isinstance(schema.get("items", {}), Mapping):
            return None
        begin, end = self._format.element(_ITEM)
        item = self._lark.rule(f"{self._lark.literal(begin)} {self._value(schema.get('items'), end, depth + 1)}")
        return f"( {item} ){{{least},{'' if most is None else most}}}"

    def _json(self, schema: Mapping[str, Any], end: str) -> str:
        whole = self._arguments.whole(schema)
        value = self._lark.json(whole, f"tools.{self._tool.name}.parameters", closed=True)
        return f"{value} {self._lark.literal(end)}"


class _Reading:
    def __init__(self, format: NestedCalls, tools: ToolArguments, reader: Reader, output: Output) -> None:
        self._format = format
        self._tools = tools
        self._reader = reader
        self._output = output
        self._open: list[str] = []
        """Elements around the present one, which their own end tags end."""
        self._ends = scanner((f"{format.prefix}</",))
        self._in_quotes = False
        """The tool is given text that is written as JSON."""

    def read(self) -> Steps[None]:
        begin, end = self._format.element(_CALLS)
        found = scanner((self._format.call, begin, end))
        yield from marked(self._reader, self._output, found, self._call, strays=frozenset({end}))

    def _call(self, marker: str) -> Steps[bool]:
        reader, output = self._reader, self._output
        if marker != self._format.call:
            yield from reader.space()
            if not (yield from reader.accept(self._format.call)):
                return False
        parts: list[str] = []
        end = yield from reader.until(scanner(('">',)), parts.append)
        name = "".join(parts).strip()
        if not end or not name or "\n" in name:
            return False
        reader.forget()
        output.start(name)
        self._open = [_CALLS, _CALL]
        self._in_quotes = self._tools.in_quotes(name)
        arguments = self._tools.of(name)
        try:
            tag = yield from self._tag()
            if (yield from self._elements(tag, arguments, arguments.root, array=False)):
                output.end()
        except TooLongError:
            return False
        return True

    def _tag(self) -> Steps[str]:
        """The next tag without its brackets, text before it dropped; the empty text where none comes."""
        yield from self._reader.until(scanner((f"{self._format.prefix}<",)), nothing)
        return (yield from self._rest())

    def _rest(self) -> Steps[str]:
        """A tag of which the first bracket has been read."""
        parts: list[str] = []
        self._reader.keep()
        end = yield from self._reader.until(scanner((">",)), parts.append)
        self._reader.forget()
        return "".join(parts).strip() if end else ""

    def _elements(self, tag: str, arguments: Arguments, schema: Any, *, array: bool) -> Steps[str]:
        """The elements from ``tag`` on, as JSON; returns the end tag behind the last one, or the empty text where the
        output ends."""
        part = arguments.part(schema, "array" if array else "object")
        properties = arguments.members(part)[0]
        opening, sink = "[" if array else "{", self._output.arguments
        while tag and not tag.startswith("/"):
            sink(opening if array else f'{opening}"{escaped(tag)}": ')
            opening = ", "
            inner = part.get("items") if array else properties.get(tag, part.get("additionalProperties"))
            end = yield from self._value(tag, arguments, inner)
            if end != f"/{tag}":
                tag = end
                break
            tag = yield from self._tag()
        if tag:
            sink({"[": "[]", "{": "{}"}.get(opening, "]" if array else "}"))
        return tag

    def _value(self, name: str, arguments: Arguments, schema: Any) -> Steps[str]:
        """The value of an element; returns the end tag behind it, which is that of an element around it if its own is
        missing."""
        reader, output, prefix = self._reader, self._output, self._format.prefix
        types = arguments.types_of(schema)
        if "string" not in types:
            yield from reader.space()
        if len(self._open) > MAX_DEPTH:
            return ""
        met = yield from reader.accept(f"{prefix}<", f"{prefix}</")
        if met == f"{prefix}<":
            end = yield from self._nested(name, arguments, schema, types)
        elif self._in_quotes and (yield from reader.peek()) == '"':
            if not (yield from json_value(reader, output.arguments)):
                return ""
            yield from reader.until(self._ends, nothing)
            end = yield from self._rest()
        elif types == STRING:
            output.arguments('"')
            if not met and not (yield from reader.until(self._ends, lambda text: output.arguments(escaped(text)))):
                return ""
            output.arguments('"')
            end = yield from self._rest()
        else:
            value = Value(output)
            if not met and "string" not in types and (yield from reader.peek()) in {"{", "["}:
                yield from json_value(reader, value.add)  # its strings may contain the end tag
            if not met and not (yield from reader.until(self._ends, value.add)):
                return ""
            value.finish(types)
            end = yield from self._rest()
        return end if not end or end[1:] in self._open else f"/{name}"

    def _nested(self, name: str, arguments: Arguments, schema: Any, types: frozenset[str]) -> Steps[str]:
        first = yield from self._rest()
        kinds = types & {"array", "object"}
        array = "array" in kinds if len(kinds) == 1 else first == _ITEM
        self._open.append(name)
        end = yield from self._elements(first, arguments, schema, array=array)
        self._open.pop()
        return end


def _minimax(prefix: str) -> NestedCalls:
    layout = Layout(
        opening=f"{prefix}<{_CALLS}>\n",
        before=f'{prefix}<{_CALL} name="',
        between="\n",
        closing=f"\n{prefix}</{_CALLS}>",
    )
    return NestedCalls(name="minimax_m3", layout=layout, prefix=prefix, signs=(Signs((prefix, f"<{_CALL} name=")),))


FORMATS: Final = (_minimax("]<]minimax[>["),)
