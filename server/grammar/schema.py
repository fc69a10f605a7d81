"""JSON schemas of clients, as llguidance is given them.

:func:`prepare` keeps the structure and makes every part explicit: references point into ``$defs`` of its own,
annotations and formats that nobody can hold are gone, and what may stand in a number is bounded, so that no model
writes zeros for ever. Numbers are written without exponent, with nine digits behind the point and fifteen before;
integers lie within ±(2^53 - 1), beyond which JSON's readers disagree. Whatever cannot be held is refused by name and
place.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from .disjoint import disjoint
from .formats import FORMATS
from .keywords import (
    APPLICATORS,
    CONSTRAINTS,
    COUNTS,
    NUMBERS,
    TYPED,
    TYPES,
    UNSUPPORTED,
    a_count,
    a_mapping,
    a_pattern,
    a_text,
    constrains,
    intersects,
    most_items,
    name_pattern,
    schemas_within,
)
from .numbers import bounded_number, exact_number
from .pointers import resolve, spelled, step
from .refusals import refusal, unsupported

MAX_DEPTH: Final = 128
"""Levels, through references too; llguidance has the same bound."""
MAX_PARTS: Final = 8192
"""Schemas within a schema: some 50 ms, in which nothing else goes on."""
_ANY: Final = "any"
_NO_VALUE: Final = "the schema allows no value"

ONE_SPACE: Final[Mapping[str, Any]] = {
    "whitespace_flexible": False,
    "key_separator": ": ?",
    "item_separator": ", ?",
}
"""JSON as most write it: at most one space, behind a colon or a comma, and none elsewhere."""

Schema = dict[str, Any]


def prepare(
    schema: Mapping[str, Any] | bool, field: str, whitespace: Mapping[str, Any] = ONE_SPACE, *, closed: bool = False
) -> Schema:
    """The schema for ``%json``. ``field`` is where the client has put it; ``whitespace`` are llguidance's options.

    ``closed`` takes ``additionalProperties`` for false where a schema with ``properties`` does not say. Raises
    BadRequest.
    """
    if schema is False:
        raise refusal(field, _NO_VALUE)
    return _Preparation({} if schema is True else dict(schema), field, closed).result(whitespace)


class _Preparation:
    """One schema on its way; definitions are prepared when something refers to them."""

    def __init__(self, root: Schema, field: str, closed: bool) -> None:
        self._closed = closed
        self._root = root
        self._field = field
        self._names: dict[str, str] = {}
        self._parts = 0
        self._waiting: list[tuple[Any, str, str]] = []
        self._definitions: Schema = {}
        # an explicit "anything" cannot be intersected with other schemas, for it refers to itself
        self._bounds_any = not any(intersects(part) for part in schemas_within(root))

    def result(self, whitespace: Mapping[str, Any]) -> Schema:
        if self._refers_to_root():
            prepared: Schema = {"$ref": self._definition("#", self._field)}
        else:
            made = self._schema(self._root, self._field, 0)
            if made is False:
                raise refusal(self._field, _NO_VALUE)
            prepared = made if isinstance(made, dict) else {}
        while self._waiting:
            schema, path, name = self._waiting.pop()
            self._definitions[name] = self._schema(schema, path, 0)
        return {"x-guidance": dict(whitespace), "$defs": self._definitions, **prepared}

    def _refers_to_root(self) -> bool:
        return any(part.get("$ref") in ("#", "#/") for part in schemas_within(self._root))

    # ---- one schema

    def _schema(self, schema: Any, path: str, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise refusal(self._field, f"the schema is nested deeper than {MAX_DEPTH} levels")
        if schema is False:
            return False
        if schema is True:
            return self._anything()
        if not isinstance(schema, dict):
            raise refusal(path, "expected a schema, which is an object, or true or false")
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise refusal(self._field, f"the schema is made of more than {MAX_PARTS} schemas")
        if "not" in schema and schema["not"] in ({}, True):
            return False  # how zod writes a property that is not there
        if not UNSUPPORTED.isdisjoint(schema):
            raise unsupported(path, next(key for key in schema if key in UNSUPPORTED))
        types = self._types(schema, path)
        if types is None and CONSTRAINTS.isdisjoint(schema):
            return self._anything()
        made: Schema = {}
        if types is not None:
            made["type"] = types[0] if len(types) == 1 else types
        every: list[Schema] = []
        if not TYPED.isdisjoint(schema) or (types is not None and not _has_values(schema)):
            self._typed(schema, types, path, depth, made, every)
        for key in ("const", "enum"):
            if key in schema:
                every.append(self._values([schema[key]] if key == "const" else schema[key], f"{path}.{key}"))
        for key in APPLICATORS:
            if key in schema:
                self._apply(key, schema[key], path, depth, made, every)
        return _joined(made, every)

    def _anything(self) -> Any:
        if not self._bounds_any:
            return True
        if _ANY not in self._definitions:
            self._definitions[_ANY] = True  # so that it is made once, although it is made of itself
            self._definitions[_ANY] = {
                "anyOf": [
                    {"type": "object", "additionalProperties": {"$ref": f"#/$defs/{_ANY}"}},
                    {"type": "array", "items": {"$ref": f"#/$defs/{_ANY}"}},
                    {"type": "string"},
                    {"type": "number", **bounded_number({}, False, "")},
                    {"type": ["boolean", "null"]},
                ]
            }
        return {"$ref": f"#/$defs/{_ANY}"}

    def _types(self, schema: Schema, path: str) -> list[str] | None:
        if "type" not in schema:
            return None
        given = schema["type"]
        types = given if isinstance(given, list) else [given]
        if not types or not all(isinstance(name, str) and name in TYPES for name in types):
            raise refusal(f"{path}.type", f"expected one of {', '.join(TYPES)}, or a list of them")
        return list(dict.fromkeys(types))

    def _values(self, values: Any, path: str) -> Schema:
        if not isinstance(values, list) or not values:
            raise refusal(path, "expected a list of at least one value")
        plain = [value for value in values if _is_plain(value)]
        options: list[Schema] = [{"enum": plain}] if plain else []
        options += [_exactly(value, path) for value in values if not _is_plain(value)]
        return options[0] if len(options) == 1 else {"anyOf": options}

    # ---- keywords of one type

    def _typed(
        self, schema: Schema, types: list[str] | None, path: str, depth: int, made: Schema, every: list[Schema]
    ) -> None:
        def may_be(*names: str) -> bool:
            return types is None or any(name in types for name in names)

        for key in COUNTS:
            if key in schema:
                made[key] = a_count(key, schema[key], f"{path}.{key}")
        if may_be("number", "integer"):
            integer = types is not None and "number" not in types
            made.update(bounded_number({key: schema[key] for key in NUMBERS if key in schema}, integer, path))
        if may_be("string"):
            self._string(schema, path, made, every)
        if may_be("array"):
            self._array(schema, path, depth, made)
        if may_be("object"):
            self._object(schema, path, depth, made)

    def _string(self, schema: Schema, path: str, made: Schema, every: list[Schema]) -> None:
        if "pattern" in schema:
            made["pattern"] = a_pattern(schema["pattern"], f"{path}.pattern")
        if "format" in schema:
            form = FORMATS.get(a_text(schema["format"], f"{path}.format"))
            if form is not None and form.pattern is None:
                made["format"] = schema["format"]
            elif form is not None and "pattern" in made:
                every.append({"type": "string", "pattern": form.pattern})
                if made.get("type") not in (None, "string"):
                    every[-1] = {"anyOf": [every[-1], {"type": [name for name in TYPES if name != "string"]}]}
            elif form is not None:
                made["pattern"] = form.pattern

    def _array(self, schema: Schema, path: str, depth: int, made: Schema) -> None:
        items, first, first_key = schema.get("items", True), schema.get("prefixItems", []), "prefixItems"
        if isinstance(items, list):
            items, first, first_key = schema.get("additionalItems", True), items, "items"
        if not isinstance(first, list):
            raise refusal(f"{path}.prefixItems", "expected a list of schemas")
        if schema.get("uniqueItems") and most_items(schema, items, first) > 1:
            raise unsupported(path, "uniqueItems", "unless `maxItems` is 1 or less")
        if first:
            made["prefixItems"] = [
                self._schema(item, f"{path}.{first_key}[{index}]", depth + 1) for index, item in enumerate(first)
            ]
        made["items"] = self._schema(items, f"{path}.items", depth + 1)
        if made["items"] is True:
            del made["items"]

    def _object(self, schema: Schema, path: str, depth: int, made: Schema) -> None:
        for key in ("properties", "patternProperties"):
            if key in schema:
                named = a_mapping(schema[key], f"{path}.{key}")
                if key == "patternProperties":
                    for pattern in named:
                        a_pattern(pattern, f"{path}.{key}{step(named, pattern)}")
                made[key] = {
                    name: self._schema(inner, f"{path}.{key}{step(named, name)}", depth + 1)
                    for name, inner in named.items()
                }
        required = schema.get("required", [])
        # draft 3 has it as a flag, which is kept by those who write schemas by hand
        if isinstance(required, bool):
            required = []
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise refusal(f"{path}.required", "expected a list of names")
        if required:
            made["required"] = list(dict.fromkeys(required))
        others = schema.get("additionalProperties", not (self._closed and "properties" in schema))
        prepared = self._schema(others, f"{path}.additionalProperties", depth + 1)
        if "propertyNames" in schema:
            prepared = self._property_names(schema, prepared, path, made)
        if prepared is not True:
            made["additionalProperties"] = prepared
        self._property_counts(made, path)

    def _property_counts(self, made: Schema, path: str) -> None:
        """Leaves out what holds anyway, and refuses what cannot be held: keys of further properties may come twice."""
        needed = frozenset(made.get("required", ()))
        names = made.get("properties", {})
        closed = made.get("additionalProperties") is False and not made.get("patternProperties")
        if made.get("minProperties", 0) <= len(needed):
            made.pop("minProperties", None)
        if closed and made.get("maxProperties", 0) >= len(names):
            made.pop("maxProperties", None)
        least, most = made.get("minProperties", 0) - len(needed), made.get("maxProperties")
        if least > 1:
            raise unsupported(path, "minProperties", "above 1 and the count of required properties")
        optional = self._bounds_any and not needed.issuperset(names)
        if optional and least > 0 and not closed:
            raise unsupported(path, "minProperties", "beside optional properties, unless there are no further ones")
        if optional and most is not None and not (closed and most - len(needed) == 1):
            raise unsupported(path, "maxProperties", "beside optional properties")

    def _property_names(self, schema: Schema, others: Any, path: str, made: Schema) -> Any:
        """What further properties may hold, once names are bound: those in ``properties`` are not looked at."""
        names = schema["propertyNames"]
        if isinstance(names, dict) and "$ref" in names and isinstance(names["$ref"], str):
            names = resolve(self._root, names["$ref"], f"{path}.propertyNames")
        if names is True or (isinstance(names, dict) and not constrains(names)):
            return others
        rule = None
        if isinstance(names, dict) and not schema.get("properties") and not schema.get("patternProperties"):
            rule = name_pattern(names)
        if rule is None:
            raise unsupported(
                path, "propertyNames", "other than one `pattern` or `enum`, where there are no properties"
            )
        made["patternProperties"] = {rule: others}
        return False

    # ---- combinations

    def _apply(self, key: str, value: Any, path: str, depth: int, made: Schema, every: list[Schema]) -> None:
        if key == "$ref":
            every.append({"$ref": self._definition(a_text(value, f"{path}.$ref"), f"{path}.$ref")})
            return
        if not isinstance(value, list) or not value:
            raise refusal(f"{path}.{key}", "expected a list of at least one schema")
        options = [self._schema(option, f"{path}.{key}[{index}]", depth + 1) for index, option in enumerate(value)]
        if key == "allOf":
            every.extend(option if isinstance(option, dict) else {"anyOf": [option]} for option in options)
            return
        if key == "oneOf" and len(options) > 1 and not disjoint(value, self._look_up):
            raise unsupported(path, "oneOf", "unless its options exclude each other plainly; `anyOf` is")
        every.append({"anyOf": options})

    def _definition(self, reference: str, path: str) -> str:
        name = self._names.get(reference)
        if name is None:
            target = resolve(self._root, reference, path)
            name = self._names[reference] = f"d{len(self._names)}"
            self._waiting.append((target, self._field + spelled(self._root, reference), name))
        return f"#/$defs/{name}"

    def _look_up(self, reference: Any) -> Any:
        return resolve(self._root, reference, self._field) if isinstance(reference, str) else True


# ---- helpers


def _joined(made: Schema, every: list[Schema]) -> Schema:
    """One schema that asks for all; as flat as can be, for a lone reference may be recursive."""
    if not every:
        return made
    if len(every) == 1 and (not made or not set(made) & set(every[0])):
        return {**made, **every[0]}
    return {**made, "allOf": every}


def _has_values(schema: Schema) -> bool:
    return "const" in schema or "enum" in schema


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | str)


def _exactly(value: Any, path: str) -> Schema:
    """A schema of one value that is no plain one."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return exact_number(value, path)
    if isinstance(value, list):
        return {
            "type": "array",
            "prefixItems": [{"const": item} if _is_plain(item) else _exactly(item, path) for item in value],
            "items": False,
            "minItems": len(value),
            "maxItems": len(value),
        }
    assert isinstance(value, dict)
    return {
        "type": "object",
        "properties": {
            name: {"const": inner} if _is_plain(inner) else _exactly(inner, path) for name, inner in value.items()
        },
        "required": list(value),
        "additionalProperties": False,
    }


def encoded(schema: Schema) -> str:
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
