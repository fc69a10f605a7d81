"""Requests that are meant to cost more than they should."""

from typing import Any, Final


def _deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def properties(count: int, *, required: bool) -> dict[str, Any]:
    names = [f"p{number}" for number in range(count)]
    properties = {name: {"type": "string"} for name in names}
    return {"type": "object", "properties": properties, **({"required": names} if required else {})}


_CHAIN: Final = {
    "$defs": {
        **{
            f"d{number}": {"properties": {name: {"$ref": f"#/$defs/d{number + 1}"} for name in "ab"}}
            for number in range(40)
        },
        "d40": {"type": "null"},
    },
    "$ref": "#/$defs/d0",
}
_TWICE: Final = {
    "$defs": {
        **{f"d{number}": {"allOf": [{"$ref": f"#/$defs/d{number + 1}"}] * 2} for number in range(25)},
        "d25": {"type": "string"},
    },
    "$ref": "#/$defs/d0",
}
_PRODUCT: Final = {
    "allOf": [
        {"anyOf": [{"type": "object", "properties": {f"p{a}_{b}": {"type": "string"}}} for b in range(8)]}
        for a in range(10)
    ]
}

BOMBS: Final[dict[str, dict[str, Any]]] = {
    "deep nesting": {"json": _deep(600)},
    "deep nesting as text": {"json": '{"items":' * 20_000 + "{}" + "}" * 20_000},
    "a huge enum": {"json": {"enum": [f"value {number}" for number in range(15_000)]}},
    "100,000 properties": {"json": properties(100_000, required=True)},
    "4,000 properties": {"json": properties(4_000, required=True)},
    "4,000 optional properties": {"json": properties(4_000, required=False)},
    "doubling references": {"json": _CHAIN},
    "doubling intersections": {"json": _TWICE},
    "a product of options": {"json": _PRODUCT},
    "a reference to itself": {"json": {"$ref": "#"}},
    "references in a circle": {
        "json": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    },
    "options of themselves": {"json": {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 2}}, "$ref": "#/$defs/a"}},
    "long arrays in long arrays": {
        "json": {"type": "array", "minItems": 90_000, "items": {"type": "array", "minItems": 90_000}}
    },
    "a long string": {"json": {"type": "string", "minLength": 99_999, "maxLength": 100_000}},
    "patterns that must all hold": {
        "json": {"allOf": [{"type": "string", "pattern": f"(.*{letter}){{10}}"} for letter in "abcdefgh"]}
    },
    "a pattern in a schema": {"json": {"type": "string", "pattern": "(a{1,1000}){1,1000}"}},
    "a huge divisor": {"json": {"type": "integer", "multipleOf": 999_999_937}},
    "repeats of repeats": {"regex": "(a{1,1000}){1,1000}"},
    "more repeats of repeats": {"regex": "((((a{1,100}){1,100}){1,100}){1,100})"},
    "an exponential pattern": {"regex": "(a|aa)*[ab]*a[ab]{300}"},
    "counting from behind": {"regex": ".*a.{5000}"},
    "too long a pattern": {"regex": "a?" * 20_000},
    "an ambiguous grammar": {"grammar": 'start: s\ns: s s | s s s | "a" | ""\n'},
    "a more ambiguous grammar": {"grammar": 'start: a\na: (a | b)* (a | b)*\nb: ("x"* "x"*)*\n'},
    "brackets in brackets": {"grammar": "start: " + "(" * 50_000 + '"a"' + ")" * 50_000},
    "doubling rules": {
        "grammar": "root ::= r0\n" + "".join(f"r{n} ::= r{n + 1} r{n + 1}\n" for n in range(60)) + 'r60 ::= "a"\n'
    },
    "repeats in a grammar": {"grammar": 'start: (("a"{1,90000}){1,90000}){1,90000}\n'},
    "many choices": {"choice": [f"{number} " * 60 for number in range(4096)]},
}
