"""The keywords of JSON Schema, and the checks of their values one by one."""

import re
from collections.abc import Iterator
from typing import Any, Final

from stentor.protocols.common.errors import BadRequest

from .refusals import refusal

MAX_ITEMS: Final = 100_000
"""Of ``minItems``, ``maxItems``, ``minLength`` and ``maxLength``: each costs an expression."""

TYPES: Final = ("null", "boolean", "number", "integer", "string", "array", "object")
UNSUPPORTED: Final = frozenset((
    "not", "if", "then", "else", "contains", "minContains", "maxContains", "dependentRequired", "dependentSchemas",
    "dependencies", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef",
))  # fmt: skip
COUNTS: Final = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
NUMBERS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
TYPED: Final = frozenset((
    *COUNTS, *NUMBERS, "pattern", "format", "items", "prefixItems", "additionalItems", "properties", "required",
    "patternProperties", "additionalProperties", "propertyNames", "uniqueItems",
))  # fmt: skip
APPLICATORS: Final = ("anyOf", "oneOf", "allOf", "$ref")
CONSTRAINTS: Final = TYPED.union(APPLICATORS, ("const", "enum"))
_SKIPPED: Final = r"\[\^?\]?(?:\\.|[^\]\\])*\]|\\[^bB1-9]"
_NOT_REGULAR: Final = {
    "look-around assertions": re.compile(rf"{_SKIPPED}|\\.|(?P<found>\(\?<?[=!])", re.DOTALL),
    "word boundaries": re.compile(rf"{_SKIPPED}|(?P<found>\\[bB])", re.DOTALL),
    "references to groups": re.compile(rf"{_SKIPPED}|\\[bB]|(?P<found>\\[1-9])", re.DOTALL),
}

Schema = dict[str, Any]


def a_count(key: str, value: Any, path: str) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise refusal(path, "expected an integer of 0 or more")
    if value > MAX_ITEMS and not key.startswith("max"):
        raise refusal(path, f"the count is beyond {MAX_ITEMS}, the most that is supported")
    return min(int(value), MAX_ITEMS)


def a_pattern(value: Any, path: str) -> str:
    """What llguidance cannot hold is found here, where its place is known."""
    pattern = a_text(value, path)
    for name, found in _NOT_REGULAR.items():
        if any(part.lastgroup == "found" for part in found.finditer(pattern)):
            raise BadRequest(f"`{path}`: {name} in patterns are not supported.", path, "unsupported_schema")
    return pattern


def a_text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise refusal(path, "expected a string")
    return value


def a_mapping(value: Any, path: str) -> Schema:
    if not isinstance(value, dict):
        raise refusal(path, "expected an object of schemas")
    return value


def most_items(schema: Schema, items: Any, first: list[Any]) -> float:
    most = schema.get("maxItems", float("inf"))
    if items is False:
        return min(len(first), most) if isinstance(most, int | float) else len(first)
    return most if isinstance(most, int | float) else float("inf")


def constrains(names: Schema) -> bool:
    return not CONSTRAINTS.union(("not",)).isdisjoint(names) or names.get("type") not in (None, "string")


def name_pattern(names: Schema) -> str | None:
    keys = CONSTRAINTS.intersection(names)
    if names.get("type") not in (None, "string"):
        return None
    if keys == {"pattern"} and isinstance(names["pattern"], str):
        return names["pattern"]
    if keys == {"const"}:
        names, keys = {"enum": [names["const"]]}, frozenset(("enum",))
    if keys == {"enum"} and isinstance(names["enum"], list):
        texts = [name for name in names["enum"] if isinstance(name, str)]
        return f"^({'|'.join(map(_escaped, texts))})$" if texts else None
    return None


def _escaped(text: str) -> str:
    """As a pattern, in the syntax that JavaScript, Python and Rust share."""
    return re.sub(r"[\\^$.*+?()\[\]{}|/&~#-]", lambda match: "\\" + match[0], text)


def schemas_within(schema: Any) -> Iterator[Schema]:
    """A schema and all that may be schemas in it."""
    stack = [schema]
    while stack:
        part = stack.pop()
        if isinstance(part, dict):
            yield part
            stack.extend(part.values())
        elif isinstance(part, list):
            stack.extend(part)


def intersects(part: Schema) -> bool:
    combined = sum(key in part for key in APPLICATORS)
    if not combined:
        return False
    if "allOf" in part and isinstance(part["allOf"], list) and len(part["allOf"]) > 1:
        return True
    return combined > 1 or "type" in part or not CONSTRAINTS.difference(APPLICATORS).isdisjoint(part)
