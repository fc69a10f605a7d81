"""Arguments as models write them, held against the reader of Anthropic's SDK."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from jiter import from_json

from stentor.server.api.common.object_text import MAX_DEPTH, MAX_WORD, ObjectText, object_of
from stentor.tests.examples import examples

TEXTS = st.text(st.sampled_from('ab"\\\n{}[]:,é😀 '), max_size=6)
SCALARS = st.sampled_from([None, True, False, 0, -12, 1.5e3, 10**30]) | TEXTS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=8
)
SLIPS = st.tuples(st.integers(0, 60), st.sampled_from([*'x"}],:{\\0-.e\n\tu', "nul", "\\ud83d", ""]), st.integers(0, 2))


@st.composite
def written(draw: st.DrawFn) -> str:
    """An object, maybe cut off, and maybe with slips."""
    text = json.dumps(
        draw(st.dictionaries(TEXTS, VALUES, max_size=4)),
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, 1])),
    )
    text = text[: draw(st.integers(0, len(text)) | st.just(len(text)))]
    for at, slip, dropped in draw(st.lists(SLIPS, max_size=2)):
        text = text[:at] + slip + text[at + dropped :]
    return text


@settings(max_examples=examples(80, 20_000), deadline=None)
@given(text=written(), size=st.integers(1, 9))
def test_the_sdk_reads_what_is_passed_on_and_finds_the_same_object(text: str, size: int) -> None:
    reader = ObjectText()
    passed = "".join(reader.take(text[at : at + size]) for at in range(0, len(text), size))
    value: Any = from_json(passed.encode(), partial_mode=True) if passed else {}
    assert value == reader.value(passed) == object_of(text)


@given(value=st.dictionaries(TEXTS, VALUES, max_size=4))
def test_an_object_passes_unchanged(value: dict[str, Any]) -> None:
    text = json.dumps(value)
    assert ObjectText().take(text) == text
    assert object_of(text) == value


def test_what_is_no_object_is_an_empty_one_and_what_is_too_large_ends_it() -> None:
    assert [object_of(text) for text in ("", " [1]", "null", "x", '{"a":1}{"b":2}')] == [{}, {}, {}, {}, {"a": 1}]
    assert ObjectText().take('{"a":' * 10_000).count("{") == MAX_DEPTH
    assert len(ObjectText().take('{"a":' + "1" * 100_000)) == len('{"a":') + MAX_WORD
