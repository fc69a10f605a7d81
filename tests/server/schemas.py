"""JSON Schema, as much of it as the served document uses: values that conform, and whether one does."""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

ANNOTATIONS = {"title", "description", "default"}
NUMERIC = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
KEYWORDS = {
    "integer": NUMERIC,
    "number": NUMERIC,
    "string": {"minLength", "maxLength"},
    "boolean": set(),
    "null": set(),
    "array": {"items", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties", "propertyNames"},
}
REFERENCE = "#/components/schemas/"
LARGEST = 2**63

Schema = Mapping[str, Any]

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-LARGEST, LARGEST)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
)
_SHALLOW = _SCALARS | st.lists(_SCALARS, max_size=3) | st.dictionaries(TEXTS, _SCALARS, max_size=3)
JSON_VALUES = _SHALLOW | st.lists(_SHALLOW, max_size=3) | st.dictionaries(TEXTS, _SHALLOW, max_size=3)


def check_keywords(schema: Schema) -> None:
    """Fails for a keyword that is unknown, out of place or of the wrong type; goes into nested schemas."""
    rest = schema.keys() - ANNOTATIONS
    if "$ref" in schema:
        assert rest == {"$ref"}, schema
        assert schema["$ref"].startswith(REFERENCE)
    elif "anyOf" in schema:
        assert rest - {"discriminator"} == {"anyOf"}, schema
        assert schema["anyOf"]
        for option in schema["anyOf"]:
            check_keywords(option)
    elif "enum" in schema:
        assert rest == {"enum"}, schema
        assert schema["enum"]
    elif rest:
        assert rest <= {"type"} | KEYWORDS[schema["type"]], schema
        for name in rest & (NUMERIC | {"minLength", "maxLength", "minItems", "maxItems"}):
            assert isinstance(schema[name], int | float), schema
        if "items" in schema:
            check_keywords(schema["items"])
        properties = schema.get("properties", {})
        assert set(schema.get("required", ())) <= properties.keys()
        for inner in properties.values():
            check_keywords(inner)
        if isinstance(schema.get("additionalProperties"), Mapping):
            check_keywords(schema["additionalProperties"])


def values(schema: Schema, schemas: Mapping[str, Schema]) -> st.SearchStrategy[Any]:
    """JSON values that conform; ``schemas`` are those that references name."""
    if "$ref" in schema:
        return values(schemas[schema["$ref"].removeprefix(REFERENCE)], schemas)
    if "anyOf" in schema:
        return st.one_of([values(option, schemas) for option in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case None:
            return JSON_VALUES
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "integer":
            low, high = schema.get("minimum", -LARGEST), schema.get("maximum", LARGEST)
            return st.integers(max(low, -8), max(low, min(high, 300))) | st.integers(low, high)
        case "number":
            return st.floats(
                schema.get("minimum", schema.get("exclusiveMinimum")),
                schema.get("maximum", schema.get("exclusiveMaximum")),
                exclude_min="exclusiveMinimum" in schema,
                exclude_max="exclusiveMaximum" in schema,
                allow_nan=False,
                allow_infinity=False,
            )
        case "string":
            low = schema.get("minLength", 0)
            return st.text(
                st.characters(codec="utf-8"), min_size=low, max_size=min(schema.get("maxLength", 12), low + 12)
            )
        case "array":
            low = schema.get("minItems", 0)
            high = min(schema.get("maxItems", low + 3), low + 3)
            return st.lists(values(schema.get("items", {}), schemas), min_size=low, max_size=high)
        case "object":
            return _objects(schema, schemas)
    raise AssertionError(schema)


@st.composite
def _objects(draw: st.DrawFn, schema: Schema, schemas: Mapping[str, Schema]) -> dict[str, Any]:
    properties = schema.get("properties", {})
    required = set(schema.get("required", ()))
    optional = sorted(properties.keys() - required)
    chosen = required | set(draw(st.lists(st.sampled_from(optional), unique=True, max_size=6)) if optional else ())
    made = {name: draw(values(properties[name], schemas)) for name in properties if name in chosen}
    if not properties:
        extra = schema.get("additionalProperties", {})
        made |= draw(st.dictionaries(TEXTS, values(extra if isinstance(extra, Mapping) else {}, schemas), max_size=3))
    return made


def why_not(value: Any, schema: Schema, schemas: Mapping[str, Schema], where: str = "$") -> str | None:
    """What keeps ``value`` from conforming; None where it does."""
    if "$ref" in schema:
        return why_not(value, schemas[schema["$ref"].removeprefix(REFERENCE)], schemas, where)
    if "anyOf" in schema:
        reasons = [why_not(value, option, schemas, where) for option in schema["anyOf"]]
        return None if None in reasons else f"{where}: none of {reasons}"
    if "enum" in schema:
        return None if value in schema["enum"] else f"{where}: {value!r} is none of {schema['enum']}"
    kinds = {"null": type(None), "boolean": bool, "string": str, "array": list, "object": dict}
    kind = schema.get("type")
    if kind == "integer" or kind == "number":
        if isinstance(value, bool) or not isinstance(value, int if kind == "integer" else int | float):
            return f"{where}: {value!r} is no {kind}"
        if value < schema.get("minimum", value) or value > schema.get("maximum", value):
            return f"{where}: {value!r} is out of range"
    elif kind is not None and not isinstance(value, kinds[kind]):
        return f"{where}: {value!r} is no {kind}"
    if kind == "array":
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            return f"{where}: {len(value)} items are too few or too many"
        inner = [why_not(item, schema.get("items", {}), schemas, f"{where}[{at}]") for at, item in enumerate(value)]
        return next(filter(None, inner), None)
    if kind == "object":
        properties = schema.get("properties", {})
        missing = set(schema.get("required", ())) - value.keys()
        if missing:
            return f"{where}: {missing} are missing"
        other = schema.get("additionalProperties", {})
        if properties and value.keys() - properties.keys():
            return f"{where}: {value.keys() - properties.keys()} are not in the schema"
        inner = [why_not(item, properties.get(name, other), schemas, f"{where}.{name}") for name, item in value.items()]
        return next(filter(None, inner), None)
    return None
