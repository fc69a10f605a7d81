"""JSON schemas of clients, as llguidance is given them.

:func:`prepare` keeps the structure and makes every part explicit: references point into ``$defs`` of its own,
annotations and formats that nobody can hold are gone, and what may stand in a number is bounded, so that no model
writes zeros for ever. Numbers are written without exponent, with nine digits behind the point and fifteen before;
integers lie within ±(2^53 - 1), beyond which JSON's readers disagree. Whatever cannot be held is refused by name and
place.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from stentor.protocols.openai.errors import BadRequest

from .disjoint import disjoint
from .formats import FORMATS
from .numbers import MAX_INTEGER, bounded_number, exact_number

MAX_DEPTH: Final = 128
"""Levels, through references too; llguidance has the same bound."""
MAX_PARTS: Final = 8192
"""Schemas within a schema: some 50 ms, in which nothing else goes on."""
MAX_ITEMS: Final = 100_000
"""Of ``minItems``, ``maxItems``, ``minLength`` and ``maxLength``: each costs an expression."""

TYPES: Final = ("null", "boolean", "number", "integer", "string", "array", "object")
UNSUPPORTED: Final = frozenset((
    "not", "if", "then", "else", "contains", "minContains", "maxContains", "dependentRequired", "dependentSchemas",
    "dependencies", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef",
))  # fmt: skip
_COUNTS: Final = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_NUMBERS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_TYPED: Final = frozenset((
    *_COUNTS, *_NUMBERS, "pattern", "format", "items", "prefixItems", "additionalItems", "properties", "required",
    "patternProperties", "additionalProperties", "propertyNames", "uniqueItems",
))  # fmt: skip
_APPLICATORS: Final = ("anyOf", "oneOf", "allOf", "$ref")
_CONSTRAINTS: Final = _TYPED.union(_APPLICATORS, ("const", "enum"))
_PLAIN: Final = re.compile(r"[$A-Za-z_][A-Za-z0-9_]{0,63}")
_ANY: Final = "any"
_NO_VALUE: Final = "the schema allows no value"
_SKIPPED: Final = r"\[\^?\]?(?:\\.|[^\]\\])*\]|\\[^bB1-9]"
_NOT_REGULAR: Final = {
    "look-around assertions": re.compile(rf"{_SKIPPED}|\\.|(?P<found>\(\?<?[=!])", re.DOTALL),
    "word boundaries": re.compile(rf"{_SKIPPED}|(?P<found>\\[bB])", re.DOTALL),
    "references to groups": re.compile(rf"{_SKIPPED}|\\[bB]|(?P<found>\\[1-9])", re.DOTALL),
}

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
        raise _refusal(field, _NO_VALUE)
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
        self._bounds_any = not any(_intersects(part) for part in _schemas_within(root))

    def result(self, whitespace: Mapping[str, Any]) -> Schema:
        if self._refers_to_root():
            prepared: Schema = {"$ref": self._definition("#", self._field)}
        else:
            made = self._schema(self._root, self._field, 0)
            if made is False:
                raise _refusal(self._field, _NO_VALUE)
            prepared = made if isinstance(made, dict) else {}
        while self._waiting:
            schema, path, name = self._waiting.pop()
            self._definitions[name] = self._schema(schema, path, 0)
        return {"x-guidance": dict(whitespace), "$defs": self._definitions, **prepared}

    def _refers_to_root(self) -> bool:
        return any(part.get("$ref") in ("#", "#/") for part in _schemas_within(self._root))

    # ---- one schema

    def _schema(self, schema: Any, path: str, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise _refusal(self._field, f"the schema is nested deeper than {MAX_DEPTH} levels")
        if schema is False:
            return False
        if schema is True:
            return self._anything()
        if not isinstance(schema, dict):
            raise _refusal(path, "expected a schema, which is an object, or true or false")
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise _refusal(self._field, f"the schema is made of more than {MAX_PARTS} schemas")
        if "not" in schema and schema["not"] in ({}, True):
            return False  # how zod writes a property that is not there
        if not UNSUPPORTED.isdisjoint(schema):
            raise _unsupported(path, next(key for key in schema if key in UNSUPPORTED))
        types = self._types(schema, path)
        if types is None and _CONSTRAINTS.isdisjoint(schema):
            return self._anything()
        made: Schema = {}
        if types is not None:
            made["type"] = types[0] if len(types) == 1 else types
        every: list[Schema] = []
        if not _TYPED.isdisjoint(schema) or (types is not None and not _has_values(schema)):
            self._typed(schema, types, path, depth, made, every)
        for key in ("const", "enum"):
            if key in schema:
                every.append(self._values([schema[key]] if key == "const" else schema[key], f"{path}.{key}"))
        for key in _APPLICATORS:
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
            raise _refusal(f"{path}.type", f"expected one of {', '.join(TYPES)}, or a list of them")
        return list(dict.fromkeys(types))

    def _values(self, values: Any, path: str) -> Schema:
        if not isinstance(values, list) or not values:
            raise _refusal(path, "expected a list of at least one value")
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

        for key in _COUNTS:
            if key in schema:
                made[key] = _count(schema[key], f"{path}.{key}")
        if may_be("number", "integer"):
            integer = types is not None and "number" not in types
            made.update(bounded_number({key: schema[key] for key in _NUMBERS if key in schema}, integer, path))
        if may_be("string"):
            self._string(schema, path, made, every)
        if may_be("array"):
            self._array(schema, path, depth, made)
        if may_be("object"):
            self._object(schema, path, depth, made)

    def _string(self, schema: Schema, path: str, made: Schema, every: list[Schema]) -> None:
        if "pattern" in schema:
            made["pattern"] = _pattern(schema["pattern"], f"{path}.pattern")
        if "format" in schema:
            form = FORMATS.get(_text(schema["format"], f"{path}.format"))
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
            raise _refusal(f"{path}.prefixItems", "expected a list of schemas")
        if schema.get("uniqueItems") and _most_items(schema, items, first) > 1:
            raise _unsupported(path, "uniqueItems", "unless `maxItems` is 1 or less")
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
                named = _mapping(schema[key], f"{path}.{key}")
                if key == "patternProperties":
                    for pattern in named:
                        _pattern(pattern, f"{path}.{key}{_step(named, pattern)}")
                made[key] = {
                    name: self._schema(inner, f"{path}.{key}{_step(named, name)}", depth + 1)
                    for name, inner in named.items()
                }
        required = schema.get("required", [])
        # draft 3 has it as a flag, which is kept by those who write schemas by hand
        if isinstance(required, bool):
            required = []
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise _refusal(f"{path}.required", "expected a list of names")
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
        required = len(made.get("required", ()))
        names = made.get("properties", {})
        closed = made.get("additionalProperties") is False and not made.get("patternProperties")
        if made.get("minProperties", 0) <= required:
            made.pop("minProperties", None)
        if closed and made.get("maxProperties", 0) >= len(names):
            made.pop("maxProperties", None)
        least, most = made.get("minProperties", 0) - required, made.get("maxProperties")
        if least > 1:
            raise _unsupported(path, "minProperties", "above 1 and the count of required properties")
        optional = self._bounds_any and any(name not in made.get("required", ()) for name in names)
        if optional and least > 0 and not closed:
            raise _unsupported(path, "minProperties", "beside optional properties, unless there are no further ones")
        if optional and most is not None and not (closed and most - required == 1):
            raise _unsupported(path, "maxProperties", "beside optional properties")

    def _property_names(self, schema: Schema, others: Any, path: str, made: Schema) -> Any:
        """What further properties may hold, once names are bound: those in ``properties`` are not looked at."""
        names = schema["propertyNames"]
        if isinstance(names, dict) and "$ref" in names and isinstance(names["$ref"], str):
            names = _resolve(self._root, names["$ref"], f"{path}.propertyNames")
        if names is True or (isinstance(names, dict) and not _constrains(names)):
            return others
        rule = None
        if isinstance(names, dict) and not schema.get("properties") and not schema.get("patternProperties"):
            rule = _name_pattern(names)
        if rule is None:
            raise _unsupported(
                path, "propertyNames", "other than one `pattern` or `enum`, where there are no properties"
            )
        made["patternProperties"] = {rule: others}
        return False

    # ---- combinations

    def _apply(self, key: str, value: Any, path: str, depth: int, made: Schema, every: list[Schema]) -> None:
        if key == "$ref":
            every.append({"$ref": self._definition(_text(value, f"{path}.$ref"), f"{path}.$ref")})
            return
        if not isinstance(value, list) or not value:
            raise _refusal(f"{path}.{key}", "expected a list of at least one schema")
        options = [self._schema(option, f"{path}.{key}[{index}]", depth + 1) for index, option in enumerate(value)]
        if key == "allOf":
            every.extend(option if isinstance(option, dict) else {"anyOf": [option]} for option in options)
            return
        if key == "oneOf" and len(options) > 1 and not disjoint(value, self._look_up):
            raise _unsupported(path, "oneOf", "unless its options exclude each other plainly; `anyOf` is")
        every.append({"anyOf": options})

    def _definition(self, reference: str, path: str) -> str:
        name = self._names.get(reference)
        if name is None:
            target = _resolve(self._root, reference, path)
            name = self._names[reference] = f"d{len(self._names)}"
            self._waiting.append((target, self._field + _spelled(self._root, reference), name))
        return f"#/$defs/{name}"

    def _look_up(self, reference: Any) -> Any:
        return _resolve(self._root, reference, self._field) if isinstance(reference, str) else True


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


def _count(value: Any, path: str) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _refusal(path, "expected an integer of 0 or more")
    if value > MAX_ITEMS:
        if ".max" in path[path.rfind(".") :] and value > MAX_INTEGER >> 22:
            return MAX_ITEMS
        raise _refusal(path, f"the count is beyond {MAX_ITEMS}, the most that is supported")
    return int(value)


def _pattern(value: Any, path: str) -> str:
    """What llguidance cannot hold is found here, where its place is known."""
    pattern = _text(value, path)
    for name, found in _NOT_REGULAR.items():
        if any(part.lastgroup == "found" for part in found.finditer(pattern)):
            raise BadRequest(f"`{path}`: {name} in patterns are not supported.", path, "unsupported_schema")
    return pattern


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise _refusal(path, "expected a string")
    return value


def _mapping(value: Any, path: str) -> Schema:
    if not isinstance(value, dict):
        raise _refusal(path, "expected an object of schemas")
    return value


def _most_items(schema: Schema, items: Any, first: list[Any]) -> float:
    most = schema.get("maxItems", float("inf"))
    if items is False:
        return min(len(first), most) if isinstance(most, int | float) else len(first)
    return most if isinstance(most, int | float) else float("inf")


def _constrains(names: Schema) -> bool:
    return not _CONSTRAINTS.union(("not",)).isdisjoint(names) or names.get("type") not in (None, "string")


def _name_pattern(names: Schema) -> str | None:
    keys = _CONSTRAINTS.intersection(names)
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


def _resolve(root: Schema, reference: str, path: str) -> Any:
    """What a reference points to, through further ones no more than it says itself."""
    if not reference.startswith("#"):
        raise _refusal(path, "only references within the schema (`#/…`) are followed")
    target: Any = root
    for segment in reference[1:].strip("/").split("/") if reference.strip("#/") else []:
        name = _unescape(segment)
        if isinstance(target, dict) and name in target:
            target = target[name]
        elif isinstance(target, list) and name.isascii() and name.isdigit() and int(name) < len(target):
            target = target[int(name)]
        else:
            raise _refusal(path, "the schema has nothing where this reference points")
    return target


def _unescape(segment: str) -> str:
    if "%" in segment:
        from urllib.parse import unquote

        segment = unquote(segment)
    return segment.replace("~1", "/").replace("~0", "~")


def _spelled(root: Schema, reference: str) -> str:
    path = ""
    target: Any = root
    for segment in reference[1:].strip("/").split("/") if reference.strip("#/") else []:
        name = _unescape(segment)
        path += _step(target, name) if isinstance(target, dict) else f"[{name}]"
        target = target[name] if isinstance(target, dict) else target[int(name)]
    return path


def _step(container: Mapping[str, Any], name: str) -> str:
    """A name as part of a path; one that is no plain name is told by its place, for it is a client's own words."""
    return f".{name}" if _PLAIN.fullmatch(name) else f"[{list(container).index(name)}]"


def _schemas_within(schema: Any) -> Iterator[Schema]:
    """A schema and all that may be schemas in it."""
    stack = [schema]
    while stack:
        part = stack.pop()
        if isinstance(part, dict):
            yield part
            stack.extend(part.values())
        elif isinstance(part, list):
            stack.extend(part)


def _intersects(part: Schema) -> bool:
    combined = sum(key in part for key in _APPLICATORS)
    if not combined:
        return False
    if "allOf" in part and isinstance(part["allOf"], list) and len(part["allOf"]) > 1:
        return True
    return combined > 1 or "type" in part or not _CONSTRAINTS.difference(_APPLICATORS).isdisjoint(part)


def _refusal(path: str, why: str) -> BadRequest:
    return BadRequest(f"`{path}`: {why}.", path, "invalid_value")


def _unsupported(path: str, keyword: str, unless: str = "") -> BadRequest:
    said = f"the keyword `{keyword}` is not supported{' ' + unless if unless else ''}"
    return BadRequest(f"`{path}`: {said}.", f"{path}.{keyword}", "unsupported_schema")


def encoded(schema: Schema) -> str:
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
