"""The keywords of JSON Schema: checks of their values, the formats that are held, and references within a schema."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

from stentor.protocols.common.errors import BadRequest

from .refusals import refusal

MAX_ITEMS: Final = 100_000
"""Most ``minItems``, ``maxItems``, ``minLength`` and ``maxLength``: each costs an expression."""

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
    """Finds patterns that llguidance does not support, while their place is known."""
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
    given = schema.get("maxItems")
    most = given if isinstance(given, int | float) else float("inf")
    return min(len(first), most) if items is False else most


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
    """A pattern of this text, in the common syntax of JavaScript, Python and Rust."""
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


_YEAR: Final = r"(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR: Final = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE: Final = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_TIME: Final = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:0[0-9]|1[0-9]|2[0-3]):[0-5][0-9])"
)
_COUNT: Final = "[0-9]{1,9}"
_CLOCK: Final = f"(?:T(?:{_COUNT}H(?:{_COUNT}M(?:{_COUNT}S)?)?|{_COUNT}M(?:{_COUNT}S)?|{_COUNT}S))"
_DAYS: Final = f"(?:{_COUNT}Y(?:{_COUNT}M(?:{_COUNT}D)?)?|{_COUNT}M(?:{_COUNT}D)?|{_COUNT}D)"
_LABEL: Final = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HOST: Final = rf"{_LABEL}(?:\.{_LABEL}){{0,3}}"
_ATOM: Final = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]{1,30}"


FORMATS: Final[Mapping[str, str | None]] = {
    "date-time": f"^{_DATE}T{_TIME}$",
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "duration": f"^P(?:{_DAYS}{_CLOCK}?|{_CLOCK}|{_COUNT}W)$",
    "email": rf"^{_ATOM}(?:\.{_ATOM})?@{_HOST}$",
    "hostname": f"^{_HOST}$",
    "ipv4": None,
    "ipv6": None,
    "uuid": None,
    "uri": None,
}
"""The values of ``format`` that are held; others are annotations, as JSON Schema has it, and dropped.

Each with a pattern of all its texts; None where llguidance's own is as good.
"""


_PLAIN: Final = re.compile(r"[$A-Za-z_][A-Za-z0-9_]{0,63}")


def resolve(root: Schema, reference: str, path: str) -> Any:
    """The target of a reference within ``root``; references inside the target are not followed. Raises BadRequest."""
    if not reference.startswith("#"):
        raise refusal(path, "only references within the schema (`#/…`) are followed")
    target: Any = root
    for name in _names(reference):
        if isinstance(target, dict) and name in target:
            target = target[name]
        elif isinstance(target, list) and name.isascii() and name.isdigit() and int(name) < len(target):
            target = target[int(name)]
        else:
            raise refusal(path, "the schema has nothing where this reference points")
    return target


def _names(reference: str) -> Iterator[str]:
    for segment in reference[1:].strip("/").split("/") if reference.strip("#/") else ():
        yield unquote(segment).replace("~1", "/").replace("~0", "~")


def spelled(root: Schema, reference: str) -> str:
    path = ""
    target: Any = root
    for name in _names(reference):
        path += step(target, name) if isinstance(target, dict) else f"[{name}]"
        target = target[name] if isinstance(target, dict) else target[int(name)]
    return path


def step(container: Mapping[str, Any], name: str) -> str:
    """A name as part of a path; a name that is not plain is replaced by its index, since it is a client's text."""
    return f".{name}" if _PLAIN.fullmatch(name) else f"[{list(container).index(name)}]"
