"""The field that a byte of an undecodable body belongs to."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.protocols.common.locating import MAX_SCANNED, half_a_character, path_at
from stentor.tests.examples import examples


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b'{"messages":[{"role":"user","content":"ab@', "messages[0].content"),
        (b'{"a":[1,{"b":@', "a[1].b"),
        (b'{"a":0@', "a"),
        (b'{"a":{"b":1},"c":[[],@', "c[1]"),
        (b'{"a":"\\"q:,{ @"', "a"),
        (b'[{"a":["\\u00e9",@', "[0].a[1]"),
        (b'{"a":{"odd key":@', "a"),
        (b'{"a":"x" @', None),
        (b'{"a":[1,2] @', None),
        (b'{"a":1,@', None),
        (b'{"@":1}', None),
        (b"{} @", None),
        (b"@", None),
        (b'"a":@', None),
    ],
)
def test_a_byte_belongs_to_the_innermost_value_around_it(body: bytes, path: str | None) -> None:
    assert path_at(body, body.index(b"@")) == path


def test_far_and_deep_bytes_are_not_located() -> None:
    assert path_at(b'{"a":"' + b"x" * MAX_SCANNED + b"@", MAX_SCANNED + 6) is None
    assert path_at(b"[" * 100_000 + b"@", 100_000) is None


json_values = st.recursive(
    st.integers() | st.just("@") | st.text(max_size=4).filter(lambda text: "@" not in text),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "cd"]), inner, max_size=3),
    max_leaves=8,
)


def places(value: Any, path: str = "") -> list[str]:
    """Where ``@`` stands, in the order of the JSON."""
    if value == "@":
        return [path]
    if isinstance(value, list):
        return [place for index, one in enumerate(value) for place in places(one, f"{path}[{index}]")]
    if isinstance(value, dict):
        return [place for key, one in value.items() for place in places(one, f"{path}.{key}" if path else key)]
    return []


@settings(max_examples=examples(50, 750), deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b"]), json_values, max_size=2))
def test_every_value_is_found_where_it_stands(value: dict[str, Any]) -> None:
    body = json.dumps(value).encode()
    found = [path_at(body, at) for at, byte in enumerate(body) if byte == ord("@")]
    assert found == places(value)


@settings(max_examples=examples(50, 750), deadline=None)
@given(st.binary(max_size=40) | st.text(alphabet='{}[]:,"\\ab1 ', max_size=40).map(str.encode), st.integers(0, 40))
def test_no_bytes_make_it_fail(body: bytes, at: int) -> None:
    path_at(body, min(at, len(body)))
    half_a_character(body)


@pytest.mark.parametrize(
    ("body", "at"),
    [
        (rb"\ud83d\ude00", None),
        (rb"x\ud83d", 1),
        (rb"\ude00", 0),
        (rb"\ud83d\ud83d\ude00", 0),
        (rb"\\ud83d", None),
        (rb"\u00e9\\\ud83d", 8),
    ],
)
def test_half_a_character_is_found(body: bytes, at: int | None) -> None:
    assert half_a_character(body) == at
