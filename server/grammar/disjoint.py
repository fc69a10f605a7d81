"""Whether the options of a ``oneOf`` exclude each other, so that it equals ``anyOf``."""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, Final

LookUp = Callable[[Any], Any]

_MAX_STEPS: Final = 20_000
_MAX_DEPTH: Final = 8
_EVERY_TYPE: Final = frozenset(("null", "boolean", "number", "string", "array", "object"))


def disjoint(options: Sequence[Any], look_up: LookUp) -> bool:
    """True only if it is certain: by their types, their values, or those of a property that both require.

    ``look_up`` resolves a ``$ref``.
    """
    budget = [_MAX_STEPS]
    return all(_apart(left, right, look_up, 0, budget) for left, right in combinations(options, 2))


def _apart(left: Any, right: Any, look_up: LookUp, depth: int, budget: list[int]) -> bool:
    budget[0] -= 1
    if depth > _MAX_DEPTH or budget[0] < 0:
        return False
    if left is False or right is False:
        return True
    if not isinstance(left, Mapping) or not isinstance(right, Mapping):
        return False
    for one, other in ((left, right), (right, left)):
        if "$ref" in one and _apart(look_up(one["$ref"]), other, look_up, depth + 1, budget):
            return True
        options = one.get("anyOf") or one.get("oneOf")
        if isinstance(options, list) and all(_apart(option, other, look_up, depth + 1, budget) for option in options):
            return True
        every = one.get("allOf")
        if isinstance(every, list) and any(_apart(part, other, look_up, depth + 1, budget) for part in every):
            return True
    values, others = _values(left), _values(right)
    if values is not None and others is not None:
        return not values & others
    if not _types(left) & _types(right):
        return True
    if _types(left) == _types(right) == {"object"}:
        return any(
            _apart(_property(left, name), _property(right, name), look_up, depth + 1, budget)
            for name in _required(left) & _required(right)
        )
    return False


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    given = schema.get("type")
    names = given if isinstance(given, list) else [given] if isinstance(given, str) else None
    if names is not None:
        return frozenset("number" if name == "integer" else str(name) for name in names)
    values = _raw_values(schema)
    return _EVERY_TYPE if values is None else frozenset(map(_type_of, values))


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def _raw_values(schema: Mapping[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _values(schema: Mapping[str, Any]) -> frozenset[str] | None:
    values = _raw_values(schema)
    return None if values is None else frozenset(map(_written, values))


def _written(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


def _required(schema: Mapping[str, Any]) -> frozenset[str]:
    names = schema.get("required")
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()


def _property(schema: Mapping[str, Any], name: str) -> Any:
    properties = schema.get("properties")
    return properties.get(name, True) if isinstance(properties, Mapping) else True
