"""What is written under a schema validates, whatever a model would like to write."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stentor.engine.core.grammar.matcher import Compiler, GuidanceMatcher
from stentor.engine.core.grammar.vocabulary import TokenBytes
from stentor.loadtest import grammar_cost
from stentor.protocols.common.errors import BadRequest
from stentor.server.grammar.lark import Lark
from stentor.server.grammar.schema import MAX_DEPTH, MAX_FURTHER, MAX_PARTS, prepare
from stentor.server.grammar.whitespace import INDENTED, WHITESPACE
from stentor.tests.examples import examples
from stentor.tests.server.grammar.schemas import BY_HAND, NAME, SCHEMAS, SMALL, all_schemas, faults_of, record
from stentor.tests.server.grammar.walking import written

FIELD = "response_format.json_schema.schema"

Write = Callable[[str, int], tuple[str, bool]]


@pytest.fixture(scope="module")
def write(compiler: Compiler, vocabulary: TokenBytes) -> Write:
    """A text under a grammar, and whether it ended, by a seed."""
    return lambda source, seed: written(compiler, vocabulary, source, seed)


def _source(special: Mapping[str, int], schema: Any, **options: Any) -> str:
    lark = Lark(special)
    return lark.source(lark.json(schema, FIELD, **options))


def _matches(compiler: Compiler, vocabulary: TokenBytes, source: str, text: str) -> bool:
    """Byte by byte, so that no token stands across a border; bytes that have no token are refused by all."""
    matcher = compiler.compile(source)
    bytes_ = _single_bytes(vocabulary)
    return all(matcher.consume(bytes_[byte]) for byte in text.encode()) and matcher.accepting()


def _single_bytes(vocabulary: TokenBytes) -> dict[int, int]:
    return {token[0]: id for id, token in enumerate(vocabulary.tokens) if len(token) == 1}


def test_there_are_two_hundred_schemas_to_prove_it_with() -> None:
    assert len(all_schemas()) >= 200


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.proof)])
def test_a_random_walk_ends_and_validates(write: Write, special: Mapping[str, int], seed: int) -> None:
    for number, schema in enumerate(all_schemas()):
        text, ended = write(_source(special, schema), 1000 * seed + number)
        assert ended, (schema, text)
        assert faults_of(schema, text) == [], (schema, text)


@settings(max_examples=examples(30, 300), deadline=None, suppress_health_check=list(HealthCheck))
@given(SCHEMAS, st.integers(0, 2**32))
def test_a_random_walk_under_any_schema_validates(
    write: Write, special: Mapping[str, int], schema: dict[str, Any], seed: int
) -> None:
    text, ended = write(_source(special, schema), seed)
    assert ended, (schema, text)
    assert faults_of(schema, text) == [], (schema, text)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "object"}, {"a": 1, "b": [1, 2]}),
        ({}, [None, True, -1.5, "é", {"k": {}}]),
        (True, "text"),
        (record({"a": SMALL, "b": {"type": "array", "items": SMALL}}), {"a": 1, "b": [1, 2]}),
        ({"type": "array"}, [{"a": 1}, []]),
    ],
)
def test_json_as_people_write_it_is_allowed(
    compiler: Compiler, vocabulary: TokenBytes, special: Mapping[str, int], schema: Any, value: Any
) -> None:
    source = _source(special, schema)
    written_so: tuple[dict[str, Any], ...] = (
        {}, {"separators": (",", ":")}, {"indent": 0}, {"indent": 2}, {"indent": 4}, {"indent": "\t"},
    )  # fmt: skip
    for options in written_so:
        assert _matches(compiler, vocabulary, source, json.dumps(value, ensure_ascii=False, **options)), options
    assert not _matches(compiler, vocabulary, source, "\n" + json.dumps(value))
    assert not _matches(compiler, vocabulary, source, json.dumps(value) + "\n")


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(value=st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-10**15, 10**15), st.text("ab\"\\/\n\t é日{}[]<>:,", max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text("ab\"\\/\n é{}", max_size=3), inner,
                                                                         max_size=3)),
))  # fmt: skip
def test_a_const_of_any_value_matches_that_value_and_none_other(
    write: Write, special: Mapping[str, int], value: Any
) -> None:
    source = _source(special, {"const": value})
    text, ended = write(source, 0)
    assert ended
    assert json.loads(text) == value
    assert type(json.loads(text)) is type(value)


def _whitespace_run(matcher: GuidanceMatcher, ids: list[int]) -> int:
    """The longest run of white space that may stand here, up to 100."""
    longest = 0
    frontier = [matcher]
    while frontier and longest < 100:
        following = []
        for one in frontier[:8]:
            allowed = one.allowed()
            for id in ids:
                if allowed >> id & 1:
                    copy = one.copy()
                    assert copy.consume(id)
                    following.append(copy)
        if not following:
            return longest
        longest += 1
        frontier = following
    return longest


@settings(max_examples=examples(30, 300), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    value=st.decimals(-(10**5), 10**5, places=6).map(float) | st.decimals(-9, 9, places=1).map(float),
    bounds=st.booleans(),
)
def test_a_number_alone_is_written_as_it_is(
    write: Write, special: Mapping[str, int], value: float, bounds: bool
) -> None:
    schema = {"type": "number", "minimum": value, "maximum": value} if bounds else {"const": value}
    text, ended = write(_source(special, schema), 0)
    assert ended
    assert float(text) == value


@pytest.mark.parametrize(
    ("whitespace", "most"),
    [
        ({}, 33),
        ({"whitespace": WHITESPACE["indented"]}, 33),
        ({"whitespace": WHITESPACE["compact"]}, 1),
        ({"whitespace": WHITESPACE["none"]}, 0),
        ({"whitespace": {"whitespace_pattern": "[ \\n]{0,4}"}}, 4),
    ],
)
def test_white_space_is_bounded_at_every_place(
    compiler: Compiler, vocabulary: TokenBytes, special: Mapping[str, int], whitespace: Any, most: int
) -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "b": {"type": "array"},
            "c": {"type": "object"},
            "d": {"type": "null"},
        },
        "required": ["a", "b", "c", "d"],
        "additionalProperties": True,
    }
    text = '{"a":1,"b":[1,{"x":true},[]],"c":{"y":[],"z":-1.5},"d":null,"e":{}}'
    matcher = compiler.compile(_source(special, schema, **whitespace))
    bytes_ = _single_bytes(vocabulary)
    ids = [bytes_[byte] for byte in b" \n\t\r" if byte in bytes_]
    in_string = False
    longest = 0
    for character in text:
        if not in_string:
            longest = max(longest, _whitespace_run(matcher, ids))
        in_string ^= character == '"'
        assert matcher.consume(bytes_[ord(character)]), text
    assert longest == most


@pytest.mark.parametrize("kind", ["number", "integer", "any", "enum", "const"])
def test_digits_come_to_an_end(
    compiler: Compiler, vocabulary: TokenBytes, special: Mapping[str, int], kind: str
) -> None:
    schema: Any = {"any": {}, "enum": {"enum": [1.5]}, "const": {"const": 2.0}}.get(kind, {"type": kind})
    for start in ("0.", "1", "-9", "1.50", "2.0", "1e", "0.0"):
        matcher = compiler.compile(_source(special, schema))
        bytes_ = _single_bytes(vocabulary)
        if not all(matcher.consume(bytes_[ord(character)]) for character in start):
            continue
        count = 0
        while count < 100 and matcher.allows(bytes_[ord("0")]):
            assert matcher.consume(bytes_[ord("0")])
            count += 1
        assert count < 20, (schema, start)


_OPEN: Any = {"type": "object", "properties": {"a": SMALL}, "additionalProperties": True}


@pytest.mark.parametrize(
    ("schema", "place", "keyword"),
    [
        ({"properties": {"a": {"not": {"type": "string"}}}}, "properties.a", "not"),
        ({"if": {}, "then": {}}, "", "if"),
        ({"type": "array", "contains": SMALL}, "", "contains"),
        ({"type": "array", "items": SMALL, "uniqueItems": True}, "", "uniqueItems"),
        ({"items": {"dependentRequired": {"a": ["b"]}}}, "items", "dependentRequired"),
        ({"anyOf": [SMALL, {"unevaluatedProperties": False}]}, "anyOf[1]", "unevaluatedProperties"),
        ({"$defs": {"a": {"not": SMALL}}, "$ref": "#/$defs/a"}, "$defs.a", "not"),
        ({"$defs": {"a b": {"not": SMALL}}, "$ref": "#/$defs/a b"}, "$defs[0]", "not"),
        ({"oneOf": [SMALL, {"type": "number"}]}, "", "oneOf"),
        ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, "", "oneOf"),
        ({"type": "object", "minProperties": 2}, "", "minProperties"),
        ({"type": "object", "properties": {"a": SMALL}, "minProperties": 2}, "", "minProperties"),
        ({**_OPEN, "minProperties": 1}, "", "minProperties"),
        ({**_OPEN, "maxProperties": 3}, "", "maxProperties"),
        ({"propertyNames": {"maxLength": 3}, "properties": {"a": SMALL}}, "", "propertyNames"),
    ],
)
def test_a_keyword_that_is_not_supported_is_named_with_its_place(schema: Any, place: str, keyword: str) -> None:
    with pytest.raises(BadRequest) as refused:
        prepare(schema, FIELD)
    where = f"{FIELD}.{place}".rstrip(".")
    assert f"`{where}`" in refused.value.message
    assert f"`{keyword}`" in refused.value.message
    assert refused.value.param == f"{where}.{keyword}"
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("schema", "param"),
    [
        (False, ""),
        ({"not": {}}, ""),
        ({"type": "strin"}, ".type"),
        ({"type": []}, ".type"),
        ({"properties": []}, ".properties"),
        ({"properties": {"a": 3}}, ".properties.a"),
        ({"properties": {"a-b": 3}}, ".properties[0]"),
        ({"required": "a"}, ".required"),
        ({"enum": []}, ".enum"),
        ({"enum": "a"}, ".enum"),
        ({"anyOf": []}, ".anyOf"),
        ({"minLength": -1}, ".minLength"),
        ({"maxItems": "3"}, ".maxItems"),
        ({"minItems": 10**7}, ".minItems"),
        ({"pattern": 3}, ".pattern"),
        ({"minimum": "0"}, ".minimum"),
        ({"multipleOf": 0}, ".multipleOf"),
        ({"multipleOf": 1e-12}, ".multipleOf"),
        ({"type": "integer", "minimum": 2**60}, ".minimum"),
        ({"const": 2**60}, ".const"),
        ({"const": [1e-12]}, ".const"),
        ({"$ref": "https://example.com/schema"}, ".$ref"),
        ({"$ref": "other.json#/a"}, ".$ref"),
        ({"$ref": "#/$defs/none"}, ".$ref"),
        ({"$ref": "#anchor"}, ".$ref"),
        ({"$ref": 3}, ".$ref"),
        ({"items": {"type": "array", "prefixItems": {}}}, ".items.prefixItems"),
    ],
)
def test_what_is_no_schema_is_refused_with_its_place(schema: Any, param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        prepare(schema, FIELD)
    assert refused.value.param == FIELD + param
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(?=a)b", "look-around"), ("a(?!b)", "look-around"), ("(?<=a)b", "look-around"), ("(?<!a)b", "look-around"),
        (r"\bword", "word boundaries"), (r"a\B", "word boundaries"), (r"(a)\1", "references"),
    ],
)  # fmt: skip
def test_a_pattern_that_is_not_regular_is_refused_with_its_place(pattern: str, said: str) -> None:
    for schema, place in (
        ({"properties": {"a": {"pattern": pattern}}}, "properties.a.pattern"),
        ({"patternProperties": {pattern: {}}}, "patternProperties[0]"),
    ):
        with pytest.raises(BadRequest) as refused:
            prepare(schema, FIELD)
        assert said in refused.value.message
        assert refused.value.param == f"{FIELD}.{place}"


@pytest.mark.parametrize(
    "pattern", [r"\\b", r"[(?=]", r"\(?=?", r"[\b]", r"[\]\1]", r"(?:a)", r"(?P<n>a)", r"\\1", r"[]\b]"]
)
def test_what_only_looks_irregular_is_none_of_it(pattern: str) -> None:
    assert prepare({"type": "string", "pattern": pattern}, FIELD)["pattern"] == pattern


def test_counts_of_properties_that_hold_anyway_are_left_out() -> None:
    closed = record({"a": SMALL, "b": SMALL})
    assert prepare({**closed, "minProperties": 2, "maxProperties": 2}, FIELD) == prepare(closed, FIELD)


def test_a_schema_that_nothing_satisfies_is_how_some_write_a_property_that_is_not_there() -> None:
    assert prepare(record({"a": {"not": {}}}, optional=("a",)), FIELD)["properties"] == {"a": False}


def test_a_schema_of_too_many_schemas_is_refused() -> None:
    with pytest.raises(BadRequest) as refused:
        prepare({"anyOf": [{"const": number} for number in range(MAX_PARTS)]}, FIELD)
    assert refused.value.param == FIELD


@pytest.mark.parametrize(
    "annotation",
    ["$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly",
     "x-order", "x-guidance", "contentEncoding", "discriminator", "nullable", "xml", "made up"],
)  # fmt: skip
def test_an_annotation_is_never_refused_and_changes_nothing(annotation: str) -> None:
    plain = record({"a": NAME})
    noted = {**record({"a": {**NAME, annotation: {"whitespace_flexible": True}}}), annotation: "0"}
    assert prepare(noted, FIELD) == prepare(plain, FIELD)


@pytest.mark.parametrize("name", ["int32", "int64", "double", "password", "binary", "uri-reference", "regex", "iri"])
def test_an_unknown_format_is_dropped(name: str) -> None:
    assert prepare({"type": "string", "format": name}, FIELD) == prepare({"type": "string"}, FIELD)


def test_references_too_deep_for_the_stack_are_refused() -> None:
    deep: Any = SMALL
    for _ in range(MAX_DEPTH + 1):
        deep = {"type": "array", "items": deep}
    with pytest.raises(BadRequest):
        prepare(deep, FIELD)


def test_the_demands_of_the_field_are_not_dropped_with_the_client_s_own_options() -> None:
    """A schema's own ``x-guidance`` would bring back endless white space."""
    made = prepare({"type": "object", "x-guidance": {"whitespace_flexible": True}}, FIELD)
    assert made["x-guidance"]["whitespace_flexible"] is False


def test_an_object_that_declares_properties_has_no_others_unless_it_says_so() -> None:
    schema = {"type": "object", "properties": {"a": SMALL}}
    for closed in (False, True):
        assert prepare(schema, FIELD, closed=closed)["additionalProperties"] is False
        assert prepare(_OPEN, FIELD, closed=closed)["additionalProperties"] is not False
    bare = {"type": "object"}
    assert prepare(bare, FIELD).get("additionalProperties") is not False
    assert prepare(bare, FIELD, closed=True)["additionalProperties"] is False


def test_an_object_that_must_have_more_properties_than_it_declares_has_others(
    compiler: Compiler, vocabulary: TokenBytes, special: Mapping[str, int]
) -> None:
    schema = {"type": "object", "properties": {"a": SMALL}, "required": ["a"], "minProperties": 2}
    source = _source(special, schema)
    assert _matches(compiler, vocabulary, source, '{"a": 1, "x": 1}')
    assert not _matches(compiler, vocabulary, source, '{"a": 1}')


_PART_A: Any = {"type": "object", "properties": {"a": SMALL}, "required": ["a"]}
_PART_B: Any = {"properties": {"b": SMALL}, "required": ["b"]}


@pytest.mark.parametrize(
    ("schema", "allowed", "denied"),
    [
        ({"type": "object"}, ["{}"], ['{"x": 1}']),
        ({"type": ["object", "null"]}, ["{}", "null"], ['{"x": 1}']),
        ({"properties": {}}, ["{}"], ['{"x": 1}']),
        ({"properties": {"o": {"type": "object"}}}, ['{"o": {}}'], ['{"o": {"x": 1}}']),
        ({"properties": {"o": {"properties": {"a": {}}}}}, ['{"o": {"a": {"x": 1}}}'], ['{"o": {"x": 1}}']),
        ({"items": _PART_A, "type": "array"}, ['[{"a": 1}]'], ['[{"a": 1, "x": 1}]']),
        ({"type": "object", "required": ["r"]}, ['{"r": [1]}'], ['{"r": 1, "x": 1}', "{}"]),
        ({"type": "object", "patternProperties": {"^k": SMALL}}, ['{"k1": 1}'], ['{"x": 1}']),
        ({"$defs": {"A": _PART_A}, "properties": {"o": {"$ref": "#/$defs/A"}}}, ['{"o": {"a": 1}}'],
         ['{"o": {"a": 1, "x": 1}}']),
        # what is explicit is kept
        (_OPEN, ['{"a": 1, "x": 1}'], ['{"a": "x"}']),
        ({"properties": {"o": {"type": "object", "additionalProperties": SMALL}}}, ['{"o": {"x": 1}}'],
         ['{"o": {"x": "1"}}', '{"x": 1}']),
        ({"type": "object", "propertyNames": {"pattern": "^k"}}, ['{"k": 1}'], ['{"x": 1}']),
        ({"type": "object", "minProperties": 1}, ['{"x": 1}'], ["{}"]),
        # schemas of the same value declare for one another
        ({"allOf": [_PART_A, _PART_B]}, ['{"a": 1, "b": 2}'], ['{"a": 1, "b": 2, "x": 3}', '{"a": 1}']),
        ({**_PART_A, "allOf": [_PART_B]}, ['{"b": 2, "a": 1}'], ['{"b": 2, "a": 1, "x": 3}']),
        ({"$defs": {"B": _PART_B}, **_PART_A, "$ref": "#/$defs/B"}, ['{"b": 2, "a": 1}'], ['{"b": 2, "a": 1, "x": 3}']),
        ({**_PART_A, "anyOf": [_PART_B, {"properties": {"c": SMALL}, "required": ["c"]}]},
         ['{"b": 2, "a": 1}', '{"c": 2, "a": 1}'],
         ['{"a": 1}', '{"b": 2, "c": 2, "a": 1}', '{"c": 2, "a": 1, "x": 1}']),
        ({"properties": {"a": SMALL, "b": SMALL}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
         ['{"a": 1}', '{"b": 1}', '{"a": 1, "b": 1}'], ["{}", '{"a": 1, "x": 1}']),
        ({"allOf": [_PART_A, {"additionalProperties": True}]}, ['{"a": 1, "x": 1}'], ['{"x": 1}']),
        ({"type": "object", "anyOf": [_PART_A, _PART_B]}, ['{"a": 1}', '{"b": 1}'], ['{"a": 1, "b": 1}', "{}"]),
    ],
)  # fmt: skip
def test_closed_objects_have_the_properties_that_are_declared_for_them(
    compiler: Compiler,
    vocabulary: TokenBytes,
    special: Mapping[str, int],
    schema: Any,
    allowed: list[str],
    denied: list[str],
) -> None:
    source = _source(special, schema, closed=True)
    assert [text for text in allowed if not _matches(compiler, vocabulary, source, text)] == []
    assert [text for text in denied if _matches(compiler, vocabulary, source, text)] == []


def test_closing_schemas_of_one_value_costs_no_more_than_a_schema_may() -> None:
    parts: list[Any] = [{"properties": {f"p{number}": {}}} for number in range(200)]
    chain = {f"A{n}": {**_PART_A, "allOf": [{"$ref": f"#/$defs/A{n + 1}"}]} for n in range(2000)}
    for schema in ({"allOf": parts}, {"$defs": {**chain, "A2000": {}}, "$ref": "#/$defs/A0"}):
        with pytest.raises(BadRequest) as refused:
            prepare(schema, FIELD, closed=True)
        assert refused.value.param == FIELD
    assert prepare({"allOf": parts[:20]}, FIELD, closed=True)


@pytest.mark.parametrize(
    "schema",
    [
        _OPEN,
        {"type": "object", "properties": {"a": SMALL}, "additionalProperties": SMALL, "required": ["a"]},
        {"allOf": [_PART_A, {"properties": {"b": SMALL}, "additionalProperties": True}]},
    ],
)
def test_a_further_property_never_has_a_declared_name_however_it_is_spelled(
    compiler: Compiler, vocabulary: TokenBytes, special: Mapping[str, int], schema: Any
) -> None:
    source = _source(special, schema)
    for name, allowed in (("x", True), ("a", False), ("\\u0061", False)):
        assert _matches(compiler, vocabulary, source, f'{{"a": 1, "{name}": 2}}') == allowed, name


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        _OPEN,
        {"type": "object", "patternProperties": {"^[kx]": SMALL}, "additionalProperties": False},
        {"type": "object", "properties": {"a": SMALL}, "additionalProperties": SMALL},
        {"type": "object", "additionalProperties": SMALL, "maxProperties": 5000},
    ],
)
def test_further_properties_come_to_an_end(
    compiler: Compiler, vocabulary: TokenBytes, special: Mapping[str, int], schema: Any
) -> None:
    source = _source(special, schema)
    members = ", ".join(f'"k{number}": 1' for number in range(MAX_FURTHER))
    assert _matches(compiler, vocabulary, source, f"{{{members}}}")
    assert not _matches(compiler, vocabulary, source, f'{{{members}, "x": 1}}')


def test_rare_characters_of_a_value_can_be_written_beside_further_properties(
    compiler: Compiler, vocabulary: TokenBytes, special: Mapping[str, int]
) -> None:
    source = _source(special, {"type": "object", "properties": {"a": {"const": "\x01"}}})
    assert _matches(compiler, vocabulary, source, '{"a": "\\u0001"}')


def test_the_cost_of_grammars_is_measured_with_the_white_space_of_the_server() -> None:
    assert grammar_cost.WHITESPACE == INDENTED


def test_every_schema_by_hand_is_prepared_once_and_again_to_the_same() -> None:
    for schema in BY_HAND:
        before = json.dumps(schema)
        assert prepare(schema, FIELD) == prepare(schema, FIELD)
        assert json.dumps(schema) == before
