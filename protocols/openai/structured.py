"""The required form of an answer: ``response_format``, ``structured_outputs`` and fields of other servers.

:func:`wanted_answer` converts any of these fields to one :data:`Answer`; :func:`json_answer` does so for other
protocols.
"""

from typing import Any, Final

import msgspec

from ..common.bounds import chars_at_most, items_at_most, total_chars_at_most
from ..common.decoding import converted
from ..common.errors import BadRequest, missing, refused, wrong
from ..common.limits import Limits
from .sampling import SamplingFields
from .structural_tags import StructuralTag, from_triggers

Schema = dict[str, Any] | bool

ANY_OBJECT: Final[dict[str, Any]] = {"type": "object"}


class JsonAnswer(msgspec.Struct, frozen=True):
    """JSON that a schema allows."""

    field: str
    """The client's field, for error messages."""
    schema: Schema
    whitespace_pattern: str | None = None
    """Allowed white space in JSON; None leaves it to the server."""
    compact: bool = False
    """Without any white space."""
    closed: bool = False
    """Objects that name no properties have none, unless the schema says otherwise; for ``strict``, too."""


class RegexAnswer(msgspec.Struct, frozen=True):
    field: str
    pattern: str


class ChoiceAnswer(msgspec.Struct, frozen=True):
    """One of these texts."""

    field: str
    choices: tuple[str, ...]


class GrammarAnswer(msgspec.Struct, frozen=True):
    """Text of a grammar in EBNF (GBNF) or Lark."""

    field: str
    source: str


class TagsAnswer(msgspec.Struct, frozen=True):
    field: str
    tag: StructuralTag


Answer = JsonAnswer | RegexAnswer | ChoiceAnswer | GrammarAnswer | TagsAnswer


class _JsonSchema(msgspec.Struct, frozen=True):
    name: str | None = None
    """OpenAI requires it; clients of llama.cpp leave it out beside a schema."""
    schema: Schema | None = None
    strict: bool | None = None
    description: str | None = None


class _TextFormat(msgspec.Struct, frozen=True, tag="text"):
    pass


class _JsonObjectFormat(msgspec.Struct, frozen=True, tag="json_object"):
    schema: Schema | None = None
    """llama.cpp's."""
    value: Schema | None = None
    """Text Generation Inference's; Hugging Face's client sends schemas so."""


class _JsonFormat(msgspec.Struct, frozen=True, tag="json"):
    """Text Generation Inference's, as the next."""

    value: Schema


class _RegexFormat(msgspec.Struct, frozen=True, tag="regex"):
    value: str


class _JsonSchemaFormat(msgspec.Struct, frozen=True, tag="json_schema"):
    json_schema: _JsonSchema


class _TagFormat(msgspec.Struct, frozen=True, tag="structural_tag"):
    format: Any = None
    structures: Any = None
    triggers: Any = None


_ResponseFormat = _TextFormat | _JsonObjectFormat | _JsonFormat | _RegexFormat | _JsonSchemaFormat | _TagFormat


class _StructuredOutputs(msgspec.Struct, frozen=True):
    json: str | Schema | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False


_CONSTRAINTS: Final = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_FIELDS: Final = {
    # vLLM's older names
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    # SGLang's and llama.cpp's
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
    "grammar": "grammar",
}
"""Fields of other servers, each of one kind."""
_TYPES: Final[dict[str, Any]] = {"json": str | Schema, "regex": str, "choice": list[str], "grammar": str}


def wanted_answer(request: SamplingFields, limits: Limits) -> Answer | None:
    """None if any text will do. Raises BadRequest naming the field."""
    answers = [
        _response_format(request.response_format, limits),
        _structured_outputs(request.structured_outputs, limits),
        *(_field(name, kind, getattr(request, name), limits) for name, kind in _FIELDS.items()),
    ]
    given = [answer for answer in answers if answer is not None]
    if len(given) > 1:
        fields = [answer.field.split(".")[0] for answer in given]
        raise BadRequest(f"`{fields[0]}` excludes `{fields[1]}`; send one of them.", fields[1])
    return given[0] if given else None


def json_answer(schema: Any, field: str, limits: Limits) -> JsonAnswer:
    """JSON of a schema, which may be a JSON string. ``field`` is its field. Raises BadRequest."""
    if isinstance(schema, str):
        chars_at_most(schema, limits.max_schema_chars, field)
        schema = _from_json(schema, field)
    if not isinstance(schema, dict | bool):
        raise refused(field, "expected a JSON schema, which is an object", "invalid_value")
    check_schema(schema, field, limits)
    return JsonAnswer(field, schema)


def check_schema(schema: Schema, field: str, limits: Limits) -> None:
    """Checks its size and depth. Raises BadRequest."""
    level: list[Any] = [schema] if isinstance(schema, dict) else []
    values = 0
    for _ in range(limits.max_schema_depth):
        values += sum(map(len, level))
        # each takes at least two characters, so a schema that is far too large is not encoded to be measured
        if not level or 2 * values > limits.max_schema_chars:
            break
        level = [inner for part in level for inner in _inside(part)]
    else:
        raise wrong(field, f"is nested too deeply; this server allows {limits.max_schema_depth} levels of a schema")
    size = 2 * values
    if size <= limits.max_schema_chars:
        size = len(msgspec.json.encode(schema))
    if size > limits.max_schema_chars:
        raise wrong(
            field,
            f"has {size} bytes or more as JSON; this server allows at most {limits.max_schema_chars}",
            "string_above_max_length",
        )


def _inside(part: Any) -> list[Any]:
    values = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return [value for value in values if isinstance(value, dict | list)]


def _response_format(value: Any, limits: Limits) -> Answer | None:
    if value is None:
        return None
    field = "response_format"
    match converted(value, _ResponseFormat, field):
        case _JsonObjectFormat(schema=None, value=None):
            return JsonAnswer(field, ANY_OBJECT)
        case _JsonObjectFormat(schema=schema, value=None):
            return json_answer(schema, f"{field}.schema", limits)
        case _JsonObjectFormat(schema=None, value=schema) | _JsonFormat(value=schema):
            return json_answer(schema, f"{field}.value", limits)
        case _JsonObjectFormat():
            raise wrong(f"{field}.value", "excludes `schema`; send one of them", "invalid_value")
        case _RegexFormat(value=pattern):
            return _constraint("regex", pattern, f"{field}.value", limits)
        case _JsonSchemaFormat(json_schema=described):
            where = f"{field}.json_schema.schema"
            if described.schema is None:
                if described.name is None:
                    raise missing(f"{field}.json_schema.name")
                return JsonAnswer(where, ANY_OBJECT)
            answer = json_answer(described.schema, where, limits)
            return msgspec.structs.replace(answer, closed=bool(described.strict))
        case _TagFormat():
            return _tags(value, field, limits)
    return None


def _structured_outputs(value: Any, limits: Limits) -> Answer | None:
    if value is None:
        return None
    field = "structured_outputs"
    said = converted(value, _StructuredOutputs, field)
    given = [name for name in _CONSTRAINTS if getattr(said, name) is not None and getattr(said, name) is not False]
    if isinstance(said.json, bool) and "json" not in given:
        given.insert(0, "json")
    if len(given) != 1:
        found = " and ".join(f"`{name}`" for name in given) or "none"
        names = ", ".join(_CONSTRAINTS)
        raise wrong(field, f"takes exactly one of {names}; it has {found}", "invalid_value")
    kind = given[0]
    answer = _constraint(kind, getattr(said, kind), f"{field}.{kind}", limits)
    if not isinstance(answer, JsonAnswer):
        return answer
    pattern = said.whitespace_pattern
    chars_at_most(pattern, limits.max_regex_chars, f"{field}.whitespace_pattern")
    if pattern is not None and said.disable_any_whitespace:
        where = f"{field}.whitespace_pattern"
        raise wrong(where, "excludes `disable_any_whitespace`", "invalid_value")
    return msgspec.structs.replace(
        answer,
        whitespace_pattern=pattern,
        compact=said.disable_any_whitespace,
        closed=said.disable_additional_properties and kind == "json",
    )


def _field(name: str, kind: str, value: Any, limits: Limits) -> Answer | None:
    return None if value is None else _constraint(kind, converted(value, _TYPES[kind], name), name, limits)


def _constraint(kind: str, value: Any, field: str, limits: Limits) -> Answer:
    match kind:
        case "json":
            return json_answer(value, field, limits)
        case "json_object":
            return JsonAnswer(field, ANY_OBJECT)
        case "regex":
            chars_at_most(value, limits.max_regex_chars, field)
            return RegexAnswer(field, value)
        case "choice":
            return _choice(value, field, limits)
        case "grammar":
            chars_at_most(value, limits.max_grammar_chars, field)
            return GrammarAnswer(field, value)
    return _tags(value, field, limits)


def _choice(choices: list[str], field: str, limits: Limits) -> ChoiceAnswer:
    if not choices:
        raise refused(field, "expected at least one choice", "invalid_value")
    items_at_most(choices, limits.max_answer_choices, field)
    total_chars_at_most(sum(map(len, choices)), limits.max_grammar_chars, field)
    return ChoiceAnswer(field, tuple(dict.fromkeys(choices)))


def _tags(value: Any, field: str, limits: Limits) -> TagsAnswer:
    if isinstance(value, str):
        chars_at_most(value, limits.max_schema_chars, field)
        value = _from_json(value, field)
    if not isinstance(value, dict):
        raise refused(field, "expected an object", "invalid_value")
    check_schema(value, field, limits)
    if value.get("format") is not None:
        return TagsAnswer(field, converted(value["format"], StructuralTag, f"{field}.format"))
    return TagsAnswer(field, from_triggers(value, field))


def _from_json(text: str, field: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise wrong(field, "is a string that is not valid JSON", "invalid_value") from None
