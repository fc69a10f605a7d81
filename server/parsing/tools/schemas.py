"""A tool's schema of one argument, for formats that write arguments as text instead of JSON."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ..interface import Tool
from .json_reader import is_json, is_number
from .python_reader import python_json
from .reader import WHITESPACE

MAX_REFERENCES: Final = 16
MAX_DEPTH: Final = 8
_INTEGER: Final = re.compile(r"\+?(-?)0*([0-9]+)")
_OF_VALUES: Final = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
_WORDS: Final = {"true": "true", "1": "true", "false": "false", "0": "false"}
_ALIASES: Final = {
    "int": "integer", "float": "number", "double": "number", "bool": "boolean", "str": "string", "text": "string",
    "dict": "object", "list": "array",
}  # fmt: skip
STRING: Final = frozenset({"string"})
QUOTED: Final = STRING | {"quoted"}
"""The type of a string that may be written as JSON."""


class Arguments:
    """Arguments of one tool: their schemas, with references."""

    def __init__(self, parameters: Mapping[str, Any] | None) -> None:
        self.root: Mapping[str, Any] = parameters if isinstance(parameters, Mapping) else {}
        self.properties, self.required, self.names = self.members(self.root)
        self._types: dict[str, frozenset[str]] = {}

    def schema(self, name: str) -> Mapping[str, Any]:
        """Schema of one argument, references resolved; empty if there is none."""
        return self.resolved(self.properties.get(name))

    def members(self, schema: Any) -> tuple[Mapping[str, Any], Sequence[str], Sequence[str]]:
        """Members of an object: its properties, the required names, and the names of both."""
        found = self.resolved(schema)
        properties, required = found.get("properties"), found.get("required")
        known = properties if isinstance(properties, Mapping) else {}
        needed = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        return known, needed, [*known, *(name for name in needed if name not in known)]

    def whole(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """A part of the schema, complete with what it refers to."""
        definitions = {key: self.root[key] for key in ("$defs", "definitions") if key in self.root}
        return {**definitions, **schema}

    def types(self, name: str) -> frozenset[str]:
        """JSON's types that an argument may have: ``string`` where nothing is said."""
        return self.declared(name) or STRING

    def declared(self, name: str) -> frozenset[str]:
        """JSON's types that the schema allows an argument; empty where nothing is said."""
        if name not in self._types:
            self._types[name] = frozenset(self._collect(self.properties.get(name), 0))
        return self._types[name]

    def types_of(self, schema: Any) -> frozenset[str]:
        """JSON's types that a schema allows."""
        return frozenset(self._collect(schema, 0)) or STRING

    def resolved(self, schema: Any) -> Mapping[str, Any]:
        """The schema itself, behind its references."""
        for _ in range(MAX_REFERENCES):
            if not isinstance(schema, Mapping):
                return {}
            target = schema.get("$ref")
            if not isinstance(target, str):
                return schema
            schema = self.root if target == "#" else self._follow(target)
        return {}

    def part(self, schema: Any, kind: str) -> Mapping[str, Any]:
        """The part of a schema that describes values of one of JSON's types: itself, or the first of its alternatives
        that allows the type."""
        found = self.resolved(schema)
        for _ in range(MAX_DEPTH):
            alternatives = [found[key] for key in ("anyOf", "oneOf", "allOf") if isinstance(found.get(key), list)]
            if "type" in found or not alternatives:
                break
            options = (option for some in alternatives for option in some[:64])
            found = self.resolved(next((option for option in options if kind in self._collect(option, 1)), None))
        return found

    def _follow(self, target: str) -> Any:
        at: Any = self.root
        for step in target.removeprefix("#").split("/")[1:]:
            at = at.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(at, Mapping) else None
        return at

    def _collect(self, schema: Any, depth: int) -> Iterable[str]:
        found = self.resolved(schema)
        types = found.get("type")
        if isinstance(types, str):
            return {_ALIASES.get(types, types)}
        if isinstance(types, list):
            return {_ALIASES.get(kind, kind) for kind in types if isinstance(kind, str)}
        values = values_of(found)
        if values is not None:
            return {_OF_VALUES.get(type(value), "null") for value in values}
        collected: set[str] = set()
        for key in ("anyOf", "oneOf", "allOf"):
            options = found.get(key)
            if isinstance(options, list) and depth < MAX_DEPTH:
                for option in options[:64]:
                    collected |= set(self._collect(option, depth + 1))
        return collected


def values_of(schema: Mapping[str, Any]) -> list[Any] | None:
    """Listed values of a schema; None if it lists none."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return values if isinstance(values, list) else None


def texts_of(schema: Mapping[str, Any]) -> list[str] | None:
    """Listed values of a schema, if all are strings."""
    values = values_of(schema)
    return values if values and all(isinstance(value, str) for value in values) else None


class ToolArguments:
    """The arguments of all tools of a request, by name; those of an unknown one are strings."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._parameters = {tool.name: tool.parameters for tool in tools}
        self._in_quotes = frozenset(tool.name for tool in tools if tool.grammar is not None)
        self._arguments: dict[str, Arguments] = {}

    def in_quotes(self, tool: str) -> bool:
        """Whether the tool is given one text that is written as a JSON string, although others are written bare."""
        return tool in self._in_quotes

    def of(self, tool: str) -> Arguments:
        """The arguments of one tool."""
        if tool not in self._arguments:
            self._arguments[tool] = Arguments(self._parameters.get(tool))
        return self._arguments[tool]


def converted(text: str, types: frozenset[str]) -> str:
    """The JSON of an argument written as ``text``: the first type that matches, null and numbers first.

    If none matches, it is JSON if it parses, and otherwise a string. An empty text is an empty array or object.
    """
    bare = text.strip(WHITESPACE)
    if "quoted" in types and bare[:1] == '"' and is_json(bare):
        return bare
    if not bare and "string" not in types and types & {"array", "object"}:
        return "[]" if "array" in types else "{}"
    if "null" in types and (bare == "null" or (bare.lower() in {"null", "none"} and "string" not in types)):
        return "null"
    if "integer" in types and (found := _INTEGER.fullmatch(bare)):
        return "0" if found[2] == "0" else found[1] + found[2]
    if types & {"integer", "number"} and is_number(bare):
        return bare
    if "boolean" in types and (word := _WORDS.get(bare.lower())):
        return word
    if types & {"object", "array"} and bare[:1] in {"{", "[", "("}:
        value = bare if is_json(bare) else python_json(bare)
        if value is not None:
            return value
    if "string" in types:
        return json.dumps(text, ensure_ascii=False)
    return bare if is_json(bare) else json.dumps(text, ensure_ascii=False)
