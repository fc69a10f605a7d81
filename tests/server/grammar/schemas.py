"""Two hundred JSON schemas and more, by hand and from a strategy: strings and arrays bounded, so that an answer ends.

Each is what a client might send; what comes out under it must validate. The end-to-end proof uses the same ones.
"""

import json
from functools import cache
from typing import Any, Final

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

Schema = dict[str, Any]

DRAFT_4: Final = "http://json-schema.org/draft-04/schema#"
DRAFT_7: Final = "http://json-schema.org/draft-07/schema#"
NAME: Final = {"type": "string", "minLength": 1, "maxLength": 12}
SMALL: Final = {"type": "integer", "minimum": 0, "maximum": 20}


def record(properties: Schema, *, optional: tuple[str, ...] = (), **more: Any) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False, **more}


def listed(items: Schema, least: int = 0, most: int = 3, **more: Any) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most, **more}


_TREE: Final = {
    **record({"value": SMALL, "children": {"type": "array", "items": {"$ref": "#/$defs/leaf"}, "maxItems": 2}}),
    "$defs": {
        "leaf": record({"value": SMALL, "next": {"anyOf": [{"$ref": "#/$defs/end"}, {"type": "null"}]}}),
        "end": record({"value": SMALL}),
    },
}
_LIST: Final = {
    "$defs": {
        "node": record({"head": {"enum": ["a", "b"]}, "tail": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}})
    },
    "$ref": "#/$defs/node",
}
_SHAPES: Final = {
    "oneOf": [{"$ref": "#/$defs/Circle"}, {"$ref": "#/$defs/Square"}],
    "discriminator": {"propertyName": "kind"},
    "$defs": {
        "Circle": record({"kind": {"const": "circle"}, "radius": {"type": "number", "minimum": 0, "maximum": 9}}),
        "Square": record({"kind": {"const": "square"}, "side": {"type": "number", "minimum": 0, "maximum": 9}}),
    },
}

_FORMATS: Final = ("date-time", "date", "time", "duration", "ipv4", "ipv6", "uuid")
_PATTERNS: Final = (
    r"^[A-Z]{3}-[0-9]{4}$", r"^(red|green|blue)$", r"^#[0-9a-f]{6}$", r"^\d{3}-\d{4}$", r"^\w{1,8}$", r"^[^\s]{1,6}$",
    r"^(a|b){2,5}$", r"^\+?[1-9]\d{1,9}$", r"^v\d\.\d\.\d$", r"^/[a-z]{1,5}/[a-z]{1,5}$", "^é{1,3}$", r"^\"{2}$",
    r"^[a-z]{2,4}@[a-z]{2,4}\.(com|org)$", r"^\$\{[a-z]{1,5}\}$", r"^.{1,6}$", r"^[à-ö]{1,4}$",
)  # fmt: skip

BY_HAND: Final[tuple[Schema, ...]] = (
    # numbers
    *({"type": "integer", **bounds} for bounds in (
        {}, {"minimum": 0}, {"maximum": -1}, {"minimum": -5, "maximum": 5}, {"exclusiveMinimum": 10},
        {"exclusiveMinimum": 0, "exclusiveMaximum": 3}, {"multipleOf": 7}, {"multipleOf": 5, "minimum": 100},
        {"minimum": -9223372036854775808, "maximum": 9223372036854775807}, {"format": "int64"}, {"minimum": 0.5},
    )),
    *({"type": "number", **bounds} for bounds in (
        {}, {"minimum": 0}, {"maximum": -0.5}, {"minimum": -1.25, "maximum": 1.75}, {"exclusiveMinimum": 0},
        {"exclusiveMinimum": 0, "exclusiveMaximum": 1}, {"multipleOf": 0.25}, {"multipleOf": 0.125, "minimum": 0},
        {"minimum": 1e6}, {"format": "double"}, {"minimum": 4, "maximum": 4},
        {"minimum": -0.3, "maximum": -0.3}, {"minimum": 0, "exclusiveMinimum": True, "$schema": DRAFT_4},
    )),
    # strings
    *({"type": "string", "maxLength": 10, "minLength": least} for least in (0, 1, 10)),
    *({"type": "string", "format": name} for name in _FORMATS),
    {"type": "string", "format": "email", "maxLength": 24},
    {"type": "string", "format": "hostname", "maxLength": 20},
    {"type": "string", "format": "uri", "maxLength": 30},
    {"type": "string", "format": "made-up", "maxLength": 8},
    {"type": "string", "format": "password", "maxLength": 8},
    {"type": "string", "format": "date", "pattern": "^2024-"},
    {"type": ["string", "null"], "format": "date", "pattern": "^20"},
    *({"type": "string", "pattern": pattern} for pattern in _PATTERNS),
    {"type": "string", "pattern": "b", "maxLength": 4},
    {"type": "string", "pattern": "^[a-z]+$", "minLength": 3, "maxLength": 6},
    # values
    *({"const": value} for value in (
        None, True, False, 0, -3, 1.5, 1e-7, 2.0, "", "text", 'quo"te\\', "line\nbreak\t", "é😀", [], {},
        [1, "a", None],
        {"a": {"b": [1.25]}}, {"": 1}, "</s>", 9007199254740991,
    )),
    *({"enum": values} for values in (
        ["a", "b", "ab"], [1, 2, 3], [1, "1", None, True], [1.5, -2.25], [[1, 2], {"k": "v"}], ["日本", "Ω"],
        [f"choice {number}" for number in range(60)],
    )),
    {"type": "string", "enum": ["a", 1, "b"]},
    {"type": "integer", "enum": [1, 2.5, 3]},
    {"type": "null"},
    {"type": "boolean"},
    *({"type": [kind, "null"], "maxLength": 5, "minimum": 0, "maximum": 9} for kind in ("string", "integer", "number")),
    {"type": ["string", "integer", "boolean"], "maxLength": 4},
    # arrays
    *(listed(items) for items in (
        SMALL, NAME, {"type": "boolean"}, {"type": "null"}, {"enum": ["x", "y"]}, listed(SMALL), record({"a": SMALL}),
    )),
    listed(SMALL, 2, 2), listed(SMALL, 1, 5), listed(SMALL, 0, 0), listed(SMALL, 0, 1, uniqueItems=True),
    listed(SMALL, uniqueItems=False),
    {"type": "array", "prefixItems": [NAME, SMALL], "items": False},
    {"type": "array", "prefixItems": [NAME, SMALL], "items": False, "minItems": 2},
    {"type": "array", "prefixItems": [NAME], "items": SMALL, "maxItems": 3},
    {"$schema": DRAFT_7, "type": "array", "items": [NAME, SMALL], "additionalItems": False},
    {"$schema": DRAFT_7, "type": "array", "items": [NAME], "additionalItems": {"type": "boolean"}, "maxItems": 3},
    {"type": "array", "items": {"anyOf": [NAME, SMALL]}, "minItems": 1, "maxItems": 4},
    # objects
    record({}),
    record({"a": SMALL}),
    record({"a": SMALL, "b": NAME}, optional=("b",)),
    record({"a": SMALL, "b": NAME, "c": {"type": "boolean"}}, optional=("a", "b", "c")),
    record({"with space": SMALL, "é": NAME, 'quo"te': {"type": "null"}, "back\\slash": SMALL, "": SMALL}),
    record({"outer": record({"inner": record({"deep": SMALL})})}),
    record({"first": NAME, "last": NAME, "age": {"type": "integer", "minimum": 0, "maximum": 130}}),
    record({"a": {"enum": [1]}, "b": {"const": "x"}}),
    {"type": "object", "properties": {"a": SMALL}, "required": ["b", "a"], "additionalProperties": NAME,
     "maxProperties": 2},
    {"type": "object", "additionalProperties": False},
    {"type": "object", "patternProperties": {"^k[0-9]$": SMALL}, "additionalProperties": False, "maxProperties": 2},
    {"type": "object", "propertyNames": {"enum": ["x", "y"]}, "additionalProperties": SMALL, "maxProperties": 2},
    {"type": "object", "propertyNames": {"pattern": "^[a-c]{1,2}$"}, "additionalProperties": NAME, "maxProperties": 2},
    {"type": "object", "properties": {"a": SMALL}, "minProperties": 1, "additionalProperties": False},
    {"properties": {"a": SMALL}, "required": ["a"], "additionalProperties": False, "type": "object"},
    # combinations
    *({"anyOf": options} for options in (
        [SMALL, NAME], [{"type": "null"}, record({"a": SMALL})], [record({"a": SMALL}), record({"b": NAME})],
        [listed(SMALL), record({"x": NAME}), {"type": "boolean"}], [{"const": 1}, {"const": 1.5}, {"const": [2]}],
    )),
    {"oneOf": [SMALL, NAME, {"type": "null"}]},
    {"oneOf": [{"const": "a"}, {"const": "b"}, {"enum": [1, 2]}]},
    {"oneOf": [record({"kind": {"const": kind}, "n": SMALL}) for kind in ("a", "b", "c")]},
    _SHAPES,
    {"allOf": [SMALL]},
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 8}]},
    {"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 5}, {"pattern": "^[a-z]*$"}]},
    {"allOf": [{"type": "object", "properties": {"a": SMALL}, "required": ["a"]},
               {"properties": {"b": NAME}, "required": ["b"], "maxProperties": 2}]},
    {"type": "string", "maxLength": 9, "anyOf": [{"pattern": "^a"}, {"pattern": "z$"}]},
    {"type": "integer", "minimum": 1, "maximum": 99, "allOf": [{"multipleOf": 3}]},
    # references
    {"$ref": "#/$defs/a", "$defs": {"a": SMALL}},
    {"definitions": {"p": NAME}, **record({"x": {"$ref": "#/definitions/p"}, "y": {"$ref": "#/definitions/p"}})},
    {"$defs": {"a/b": SMALL, "c~d": NAME}, **record({"x": {"$ref": "#/$defs/a~1b"}, "y": {"$ref": "#/$defs/c~0d"}})},
    record({"a": NAME, "b": {"$ref": "#/properties/a"}}),
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": SMALL}, "$ref": "#/$defs/a"},
    {"$defs": {"a": SMALL}, "$ref": "#/$defs/a", "minimum": 7},
    {"$defs": {"n": NAME}, **record({"n": {"$ref": "#/$defs/n", "description": "the name", "default": "x"}})},
    _TREE,
    _LIST,
    {**record({"v": SMALL, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}})},
    # annotations and what is written around schemas
    {"$schema": DRAFT_7, "$id": "https://example.com/a", "title": "A", **record({"a": SMALL})},
    {"$schema": "https://json-schema.org/draft/2020-12/schema", "$comment": "c", "x-order": 1, **record({"a": SMALL})},
    record({"a": {**SMALL, "deprecated": True, "readOnly": True, "examples": [1], "default": 2, "title": "A"}}),
    record({"title": NAME, "description": NAME, "default": SMALL, "type": NAME, "$ref": SMALL, "enum": SMALL}),
    record({"a": {"type": "string", "maxLength": 9, "contentEncoding": "base64", "contentMediaType": "text/plain"}}),
    # what people ask for
    record({"sentiment": {"enum": ["positive", "negative", "neutral"]},
            "confidence": {"type": "number", "minimum": 0, "maximum": 1}}),
    record({"steps": listed(record({"explanation": NAME, "output": NAME}), 1, 2), "final_answer": NAME}),
    record({"name": NAME, "date": {"type": "string", "format": "date"}, "participants": listed(NAME, 1, 3)}),
    record({"id": {"type": "string", "format": "uuid"}, "tags": listed({"enum": ["a", "b", "c"]}), 
            "price": {"type": "number", "minimum": 0, "multipleOf": 0.125, "maximum": 1000},
            "stock": {"type": ["integer", "null"], "minimum": 0, "maximum": 99}}),
    record({"location": {"type": "string", "maxLength": 20}, "unit": {"type": "string", "enum": ["c", "f"]}},
           optional=("unit",)),
    record({"rows": listed({"type": "array", "prefixItems": [NAME, SMALL, {"type": "boolean"}], "minItems": 3,
                            "items": False}, 1, 2)}),
    {"type": "object", "properties": {"answer": {"anyOf": [{"type": "string", "maxLength": 8}, {"type": "null"}]},
     "score": {"type": "integer", "minimum": 1, "maximum": 5}}, "required": ["answer", "score"],
     "additionalProperties": False},
)  # fmt: skip


# ---- a strategy


def _bounds(least: int, most: int, low: str, high: str) -> st.SearchStrategy[Schema]:
    pairs = st.tuples(st.integers(least, most), st.integers(least, most)).map(sorted)
    return pairs.map(lambda pair: {low: pair[0], high: pair[1]})


_TEXTS: Final = st.text("abcXYZ019 _-.,:;/\\\"'<>{}[]()äéßñΩλЖя日本語한국😀→\n\t", max_size=8)
_NAMES: Final = st.one_of(st.sampled_from(["id", "name", "a b", "é", "日本", "x-y", "$ref", "type", "items"]), _TEXTS)
_VALUES: Final = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-1000, 1000), st.sampled_from([0.5, -2.25, 3.75]), _TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(_NAMES, inner, max_size=2)),
    max_leaves=4,
)

_STRINGS: Final = st.one_of(
    _bounds(0, 12, "minLength", "maxLength"),
    st.sampled_from(_PATTERNS).map(lambda pattern: {"pattern": pattern}),
    st.sampled_from(_FORMATS).map(lambda name: {"format": name}),
).map(lambda rest: {"type": "string", **rest})
_NUMBERS: Final = st.one_of(
    _bounds(-1000, 1000, "minimum", "maximum").map(lambda rest: {"type": "integer", **rest}),
    _bounds(-100, 100, "minimum", "maximum").map(lambda rest: {"type": "number", **rest}),
    st.sampled_from([2, 3, 10, 25]).map(lambda step: {"type": "integer", "multipleOf": step, "minimum": 0}),
    st.sampled_from([0.5, 0.25, 0.125]).map(lambda step: {"type": "number", "multipleOf": step, "maximum": 50}),
)
_SCALARS: Final = st.one_of(
    _STRINGS,
    _NUMBERS,
    st.sampled_from([{"type": "boolean"}, {"type": "null"}]),
    st.lists(_VALUES, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    _VALUES.map(lambda value: {"const": value}),
    st.sampled_from([{"$ref": "#/$defs/shared"}, {"$ref": "#/$defs/person"}]),
)


def _objects(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    def build(properties: Schema, flags: list[bool], annotated: bool) -> Schema:
        optional = tuple(name for name, flag in zip(properties, flags, strict=False) if flag)
        return record(properties, optional=optional, **({"title": "T", "x-extra": [1]} if annotated else {}))

    return st.builds(
        build,
        st.dictionaries(_NAMES, inner, max_size=4),
        st.lists(st.booleans(), min_size=4, max_size=4),
        st.booleans(),
    )


def _arrays(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    def plain(items: Schema, bounds: Schema) -> Schema:
        return {"type": "array", "items": items, **bounds}

    return st.one_of(
        st.builds(plain, inner, _bounds(0, 3, "minItems", "maxItems")),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda first: {"type": "array", "prefixItems": first, "items": False, "minItems": len(first) - 1}
        ),
    )


_SHARED: Final = {"shared": NAME, "person": record({"name": NAME, "age": SMALL}, optional=("age",))}

SCHEMAS: Final[st.SearchStrategy[Schema]] = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        _objects(inner),
        _objects(inner),
        _arrays(inner),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
        inner.map(lambda one: {"allOf": [one]}),
    ),
    max_leaves=6,
).map(lambda schema: {"$defs": _SHARED, **schema})
"""Bounded ones, of which every one has a value."""


def drawn(count: int) -> list[Schema]:
    """So many of the strategy, the same ones each time."""
    found: list[Schema] = []

    @settings(max_examples=4 * count, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(SCHEMAS)
    def collect(schema: Schema) -> None:
        if schema not in found and len(found) < count:
            found.append(schema)

    collect()
    return found


def faults_of(schema: Schema, text: str) -> list[str]:
    """Why a text is no JSON that the schema allows; nothing where it is."""
    try:
        value = json.loads(text, object_pairs_hook=_once)
    except ValueError as error:
        return [str(error)]
    validator = validator_for(schema, default=Draft202012Validator)
    errors = validator(schema, format_checker=validator.FORMAT_CHECKER).iter_errors(value)
    return [error.message[:200] for error in errors]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a key comes twice in an object")
    return dict(pairs)


@cache
def all_schemas() -> list[Schema]:
    """At least 200."""
    return [*BY_HAND, *drawn(60)]
