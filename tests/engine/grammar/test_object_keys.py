"""No key comes twice in an object, whatever its schema says of the names."""

import json
import random
from typing import Any

import pytest

from stentor.engine.core.grammar.matcher import Compiler, GuidanceMatcher
from stentor.engine.core.grammar.object_keys import KeyTokens, ObjectKeys
from stentor.engine.core.grammar.token_sets import ids_in, set_of
from stentor.engine.core.grammar.vocabulary import TokenBytes
from stentor.tests.engine.grammar.byte_vocabulary import EOS

WHOLE = [b'"a"', b' "b":', b'{"a":', b',"a":1', b'a":', b'1}, "a"', b'":1,"a":1', b'"', b'\\"', b"\n", b"\xc3\xa9"]
TOKENS = [*(bytes([value]) for value in range(256)), b"<eos>", *WHOLE]
VOCABULARY = TokenBytes(TOKENS, [EOS], [EOS])
COMPACT = {"x-guidance": {"whitespace_flexible": False}}
SHORT_NAMES: dict[str, Any] = {
    **COMPACT,
    "type": "object",
    "additionalProperties": {"type": "object", "additionalProperties": {"enum": [1, [2], "x"]}, "maxProperties": 3},
    "maxProperties": 6,
}


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(VOCABULARY)


def _drawn(matcher: GuidanceMatcher, rng: random.Random, letters: bytes) -> bytes:
    """A walk to the end that takes few letters, so that names would be equal."""
    liked = set_of((id for id, text in enumerate(TOKENS) if set(text) <= set(letters)), len(TOKENS))
    text = b""
    while not matcher.stopped():
        allowed = matcher.allowed()
        if matcher.accepting():
            break
        token = rng.choice(ids_in(allowed & liked or allowed))
        assert matcher.consume(token)
        text += TOKENS[token]
    return text


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    assert len(set(names)) == len(names), names
    return dict(pairs)


def test_names_that_no_schema_knows_come_once_in_each_object(compiler: Compiler) -> None:
    template = compiler.compile(f"start: %json {json.dumps(SHORT_NAMES)}")
    counts = set()
    for seed in range(150):
        text = _drawn(template.copy(), random.Random(seed), b'ab"{},: 12x[]')
        value = json.loads(text, object_pairs_hook=_once)
        counts.add(len(value))
    assert max(counts) == 6, "names of two letters are enough for some"


def test_the_same_names_are_free_in_another_object(compiler: Compiler) -> None:
    matcher = compiler.compile(f"start: %json {json.dumps(SHORT_NAMES)}")
    for byte in b'{"a":{"a":1},"b":{"a":1,"b":1}}':
        assert matcher.allowed() >> byte & 1, chr(byte)
        assert matcher.consume(byte)


@pytest.mark.parametrize(
    ("drawn", "banned"),
    [
        (b'{"a":1,"', [b'a":', b'":1,"a":1']),
        (b'{"a":1,"a', [b'"', b'"a"', b'":1,"a":1']),
        (b'{"a":1,', [b'"a"']),
        (b'{"b":1,', [b' "b":']),
        (b'{"a":1', [b',"a":1']),
        (b'{"a":{"b":', [b'1}, "a"']),
        (b'{"a":[[], {}, -1.5e3, true, "}"],', [b'"a"']),
        (b'{"a\\"b":1,"a\\"b', [b'"', b'"a"', b'":1,"a":1']),
        (b'{"a":1,"c', [b'":1,"a":1']),
        (b'{"a":1,"b\\', []),
        (b'{"a":1,"b', [b'":1,"a":1']),
        (b'{"a":"', []),
        (b'{"a":{', []),
        (b'{"a":["a",', []),
        (b'{"a":1}', []),
        (b'{"a":1} {', []),
        (b'a {b} <tool>{"a":1,', [b'"a"']),
        (b'{"a": what {"a":1,', [b'"a"']),
        (b'{"a\n', []),
        (b"", []),
    ],
)
def test_only_tokens_that_end_a_key_again_are_banned(drawn: bytes, banned: list[bytes]) -> None:
    keys = ObjectKeys(KeyTokens(TOKENS))
    for byte in drawn:
        keys.take(byte)
    found = {TOKENS[token] for token in ids_in(keys.repeating(len(TOKENS)))}
    assert found == set(banned)
    assert {TOKENS[token] for token in ids_in(keys.copy().repeating(len(TOKENS)))} == found


def test_a_key_is_repeated_where_nothing_else_is_left(compiler: Compiler) -> None:
    """An object that may only have names of which all are taken ends, or goes on as its grammar says."""
    matcher = compiler.compile('start: "{" pair "," pair "}"\npair: "\\"a\\":" %json {"const": 1}')
    for byte in b'{"a":1,"a":1}':
        assert matcher.allowed() >> byte & 1
        assert matcher.consume(byte)


def test_free_text_before_json_may_repeat_what_it_likes(compiler: Compiler) -> None:
    matcher = compiler.compile(f'start: TEXT "<tool>" %json {json.dumps(SHORT_NAMES)}\nTEXT: /(.|\\n)*/')
    for byte in b'say {"a":1,"a":1}':
        assert matcher.allowed() >> byte & 1
        assert matcher.consume(byte)
