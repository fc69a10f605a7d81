"""Grammars of arguments that are written as text up to a marker."""

import re
from collections.abc import Sequence
from typing import Any, Final

from ...grammar.lark import ANY_TEXT, Lark
from .schemas import Arguments

MAX_LENGTH: Final = 2000
"""Characters up to which bounds of strings are held; each costs a state."""


def text_value(
    lark: Lark,
    arguments: Arguments,
    name: str,
    types: frozenset[str],
    end: str,
    forbidden: Sequence[str],
    field: str,
) -> str:
    """One argument and the marker ``end`` behind it. A string is free text without the markers ``forbidden``."""
    schema = arguments.schema(name)
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
        return "( " + " | ".join(lark.literal(value + end) for value in values) + " )"
    if "string" not in types:
        return f"{lark.json(arguments.whole(schema), field, closed=True)} {lark.literal(end)}"
    conditions = [ANY_TEXT, *string_conditions(schema)]
    if forbidden:
        conditions.append(f"~/(?s:.*)({'|'.join(_escaped(marker) for marker in forbidden)})(?s:.*)/")
    return lark.text_until(end, " & ".join(conditions))


def string_conditions(schema: Any) -> list[str]:
    """What a schema says of a string, as patterns of a terminal."""
    conditions: list[str] = []
    least, most = schema.get("minLength"), schema.get("maxLength")
    low = least if isinstance(least, int) and 0 < least <= MAX_LENGTH else 0
    high = most if isinstance(most, int) and 0 <= most <= MAX_LENGTH else None
    if low or high is not None:
        conditions.append(f"/(?s:.{{{low},{'' if high is None else max(high, low)}}})/")
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and pattern:
        conditions.append(_searched(pattern))
    return conditions


def _searched(pattern: str) -> str:
    """A terminal for text in which the pattern is found, as JSON schema means it."""
    begins, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith(r"\$")
    inner = pattern[begins : len(pattern) - ends]
    slashed = re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", inner).replace("\n", r"\n").replace("\r", r"\r")
    return f"/{'' if begins else '(?s:.*)'}({slashed}){'' if ends else '(?s:.*)'}/"


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", r"\/").replace("\n", r"\n")
