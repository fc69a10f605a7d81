"""Prepares clients' JSON schemas for llguidance.

:func:`prepare` keeps the structure and makes every part explicit. References point into its own ``$defs``, annotations
and formats that cannot be enforced are removed, and numbers are bounded, so that no model writes zeros for ever.
Numbers are written without exponent, with at most nine digits behind the point and fifteen before; integers are within
±(2^53 - 1), beyond which JSON readers disagree. An object has at most 256 undeclared properties: the grammar excludes
the declared names there, but cannot exclude a name that the model chose before. Keywords that cannot be enforced are
refused by name and place.
"""

import json
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

from stentor.protocols.common.errors import BadRequest

from .disjoint import disjoint
from .keywords import (
    APPLICATORS,
    CONSTRAINTS,
    COUNTS,
    FORMATS,
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
    resolve,
    schemas_within,
    spelled,
    step,
)
from .numbers import bounded_number, exact_number
from .refusals import refusal, unsupported
from .sibling_schemas import NOTHING_BESIDE, SiblingSchemas, demands_further, is_open, together
from .whitespace import INDENTED

MAX_DEPTH: Final = 128
"""Levels, through references too; llguidance has the same bound."""
MAX_PARTS: Final = 8192
"""Schemas within a schema: about 50 ms of work on the event loop."""
MAX_FURTHER: Final = 256
"""Properties of an object beyond those that its schema declares."""
_ANY: Final = "any"
_NO_VALUE: Final = "the schema allows no value"
_OPTIONAL_BESIDE_BOUND: Final[Mapping[str, Any]] = {"lenient": True}
"""llguidance then takes ``maxProperties`` beside optional properties: as a bound on further ones, which is meant."""
_ONE_SPELLING: Final[Mapping[str, Any]] = {"json_allowed_escapes": 'nrbtf\\"'}
"""Without ``\\u0061`` for ``a``, as which a further property could have a name that is declared."""
_RARE: Final = re.compile(r"\\u(00[01]|007f)|\x7f")
"""Characters that JSON writes in no other way, in JSON."""

Schema = dict[str, Any]


def prepare(
    schema: Mapping[str, Any] | bool, field: str, whitespace: Mapping[str, Any] = INDENTED, *, closed: bool = False
) -> Schema:
    """The schema for ``%json``. ``field`` is where the client has put it; ``whitespace`` are llguidance's options.

    ``additionalProperties`` is taken for false where an object has ``properties`` and does not say; with ``closed``
    also where it has none. Raises BadRequest.
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
        self._names: dict[tuple[str, SiblingSchemas | None], str] = {}
        self._parts = 0
        self._waiting: list[tuple[Any, str, str, SiblingSchemas | None]] = []
        self._definitions: Schema = {}
        self._options: dict[str, Any] = {}
        self._declarations: dict[str, SiblingSchemas] = {}
        self._cut = False
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
            schema, path, name, beside = self._waiting.pop()
            self._definitions[name] = self._schema(schema, path, 0, beside)
        return {"x-guidance": {**whitespace, **self._options}, "$defs": self._definitions, **prepared}

    def _refers_to_root(self) -> bool:
        return any(part.get("$ref") in ("#", "#/") for part in schemas_within(self._root))

    # ---- one schema

    def _schema(self, schema: Any, path: str, depth: int, beside: SiblingSchemas | None = None) -> Any:
        """``beside``: the other schemas of the same value; None without any."""
        if depth > MAX_DEPTH:
            raise self._too_deep()
        if schema is False:
            return False
        if schema is True:
            return self._anything()
        if not isinstance(schema, dict):
            raise refusal(path, "expected a schema, which is an object, or true or false")
        self._count(1)
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
        shared = self._shared(schema, beside)
        if not TYPED.isdisjoint(schema) or (types is not None and not _has_values(schema)):
            self._typed(schema, types, path, depth, made, every, shared.get("", beside))
        for key in ("const", "enum"):
            if key in schema:
                every.append(self._values([schema[key]] if key == "const" else schema[key], f"{path}.{key}"))
        for key in APPLICATORS:
            if key in schema:
                self._apply(key, schema[key], path, depth, every, shared.get(key, beside))
        return _joined(made, every)

    def _too_deep(self) -> BadRequest:
        return refusal(self._field, f"the schema is nested deeper than {MAX_DEPTH} levels")

    def _count(self, parts: int) -> None:
        self._parts += parts
        if self._parts > MAX_PARTS:
            raise refusal(self._field, f"the schema is made of more than {MAX_PARTS} schemas")

    def _anything(self) -> Any:
        if not self._bounds_any:
            return True
        if _ANY not in self._definitions:
            self._definitions[_ANY] = True  # made once, although it refers to itself
            self._definitions[_ANY] = {
                "anyOf": [
                    {
                        "type": "object",
                        "additionalProperties": {"$ref": f"#/$defs/{_ANY}"},
                        "maxProperties": MAX_FURTHER,
                    },
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
        self,
        schema: Schema,
        types: list[str] | None,
        path: str,
        depth: int,
        made: Schema,
        every: list[Schema],
        beside: SiblingSchemas | None,
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
            self._object(schema, path, depth, made, beside, types is not None)

    def _string(self, schema: Schema, path: str, made: Schema, every: list[Schema]) -> None:
        if "pattern" in schema:
            made["pattern"] = a_pattern(schema["pattern"], f"{path}.pattern")
        if "format" in schema:
            form = a_text(schema["format"], f"{path}.format")
            pattern = FORMATS.get(form)
            if form in FORMATS and pattern is None:
                made["format"] = form
            elif pattern is not None and "pattern" in made:
                every.append({"type": "string", "pattern": pattern})
                if made.get("type") not in (None, "string"):
                    every[-1] = {"anyOf": [every[-1], {"type": [name for name in TYPES if name != "string"]}]}
            elif pattern is not None:
                made["pattern"] = pattern

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

    def _object(
        self, schema: Schema, path: str, depth: int, made: Schema, beside: SiblingSchemas | None, typed: bool
    ) -> None:
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
        # draft 3 has it as a flag, which hand-written schemas still use
        if isinstance(required, bool):
            required = []
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise refusal(f"{path}.required", "expected a list of names")
        if required:
            made["required"] = list(dict.fromkeys(required))
        closes = self._closes(schema, beside, typed)
        if closes:
            others = (beside or NOTHING_BESIDE).names.union(required)
            self._count(len(others))
            for name in sorted(others):
                made.setdefault("properties", {}).setdefault(name, True)
        prepared = self._schema(
            schema.get("additionalProperties", not closes), f"{path}.additionalProperties", depth + 1
        )
        if "propertyNames" in schema:
            prepared = self._property_names(schema, prepared, path, made)
        if prepared is not True:
            made["additionalProperties"] = prepared
        self._property_counts(made, path)
        self._bound_further(made)

    def _bound_further(self, made: Schema) -> None:
        if made.get("additionalProperties") is False and not made.get("patternProperties"):
            return
        if made.get("properties") and not self._has_rare_characters:
            self._options.update(_ONE_SPELLING)
        if not self._bounds_any:
            return  # counts of schemas that are intersected are llguidance's to judge
        needed = frozenset(made.get("required", ()))
        most = len(needed) + MAX_FURTHER
        made["maxProperties"] = min(most, made.get("maxProperties", most))
        if not needed.issuperset(made.get("properties", {})):
            self._options.update(_OPTIONAL_BESIDE_BOUND)

    @cached_property
    def _has_rare_characters(self) -> bool:
        return _RARE.search(json.dumps(self._root)) is not None

    # ---- objects without further properties

    def _closes(self, schema: Schema, beside: SiblingSchemas | None, typed: bool) -> bool:
        """Whether an object that does not say so has no further properties. ``typed``: it says that it is one."""
        if not {"additionalProperties", "propertyNames"}.isdisjoint(schema):
            return False
        if beside is not None and not beside.closed:
            return False
        if not {"properties", "patternProperties"}.isdisjoint(schema):
            return not demands_further(schema)
        # one that only adds to others, as with ``required``, leaves names to them; one that must have some allows some
        return self._closed and beside is None and typed and not schema.get("minProperties")

    def _shared(self, schema: Schema, beside: SiblingSchemas | None) -> dict[str, SiblingSchemas]:
        """Schemas beside each part of a schema with several that apply together, by keyword; "" are its own
        keywords."""
        if beside is None and not intersects(schema):
            return {}
        own = {key: value for key, value in schema.items() if key not in APPLICATORS}
        parts: dict[str, Any] = {"": own, **{key: schema[key] for key in APPLICATORS if key in schema}}
        declared = {key: self._declared(key, part, set()) for key, part in parts.items()}
        return {
            # options of one keyword exclude each other; all others apply to the same value
            key: together(
                beside or NOTHING_BESIDE,
                *(there for other, there in declared.items() if other != key or key in ("", "allOf")),
            )
            for key in parts
        }

    def _declared(self, key: str, part: Any, seen: set[str], depth: int = 0) -> SiblingSchemas:
        """Declarations of an object's properties in a part of a schema, with all that apply to the same value."""
        self._count(1)
        if depth > MAX_DEPTH:
            raise self._too_deep()
        if key == "$ref":
            return self._declared_by(part, seen, depth) if isinstance(part, str) else NOTHING_BESIDE
        if key:
            return together(
                *(self._declared("", each, seen, depth + 1) for each in (part if isinstance(part, list) else ()))
            )
        if not isinstance(part, dict):
            return NOTHING_BESIDE
        named = part.get("properties")
        own = SiblingSchemas(frozenset(named if isinstance(named, dict) else ()), not is_open(part))
        return together(
            own, *(self._declared(each, part[each], seen, depth + 1) for each in APPLICATORS if each in part)
        )

    def _declared_by(self, reference: str, seen: set[str], depth: int) -> SiblingSchemas:
        """Those of a definition. One that ``seen`` cuts short, for a circle, is not kept."""
        if reference in self._declarations:
            return self._declarations[reference]
        if reference in seen:
            self._cut = True
            return NOTHING_BESIDE
        try:
            target = self._look_up(reference)
        except BadRequest:
            return NOTHING_BESIDE  # refused where it is used, with its place
        outermost, before = not seen, self._cut
        seen.add(reference)
        self._cut = False
        found = self._declared("", target, seen, depth + 1)
        if outermost or not self._cut:
            self._declarations[reference] = found
        self._cut = before or (self._cut and not outermost)
        return found

    def _property_counts(self, made: Schema, path: str) -> None:
        """Removes redundant counts, and refuses those that llguidance cannot enforce: of optional properties."""
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
        """Names of further properties, if names are constrained: those in ``properties`` are not checked."""
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

    def _apply(
        self, key: str, value: Any, path: str, depth: int, every: list[Schema], beside: SiblingSchemas | None
    ) -> None:
        if key == "$ref":
            every.append({"$ref": self._definition(a_text(value, f"{path}.$ref"), f"{path}.$ref", beside)})
            return
        if not isinstance(value, list) or not value:
            raise refusal(f"{path}.{key}", "expected a list of at least one schema")
        options = [
            self._schema(option, f"{path}.{key}[{index}]", depth + 1, beside) for index, option in enumerate(value)
        ]
        if key == "allOf":
            every.extend(option if isinstance(option, dict) else {"anyOf": [option]} for option in options)
            return
        if key == "oneOf" and len(options) > 1 and not disjoint(value, self._look_up):
            raise unsupported(path, "oneOf", "unless its options exclude each other plainly; `anyOf` is")
        every.append({"anyOf": options})

    def _definition(self, reference: str, path: str, beside: SiblingSchemas | None = None) -> str:
        name = self._names.get((reference, beside))
        if name is None:
            target = resolve(self._root, reference, path)
            name = self._names[reference, beside] = f"d{len(self._names)}"
            self._waiting.append((target, self._field + spelled(self._root, reference), name, beside))
        return f"#/$defs/{name}"

    def _look_up(self, reference: Any) -> Any:
        return resolve(self._root, reference, self._field) if isinstance(reference, str) else True


# ---- helpers


def _joined(made: Schema, every: list[Schema]) -> Schema:
    """One schema that requires all; as flat as possible, since a lone reference may be recursive."""
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
