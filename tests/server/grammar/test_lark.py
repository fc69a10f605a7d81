"""No text of a client's can end the rule that it stands in, and a literal matches exactly itself."""

import json
import re
from collections.abc import Mapping

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stentor.engine.core.grammar.matcher import Compiler, GrammarError
from stentor.engine.core.grammar.token_sets import ids_in
from stentor.engine.core.grammar.vocabulary import TokenBytes
from stentor.protocols.common.errors import BadRequest
from stentor.server.grammar.answers import compose
from stentor.server.grammar.lark import Lark
from stentor.server.text.tokenizers.grammar_tokens import special_tokens_of, token_bytes_of
from stentor.tests.examples import examples
from stentor.tests.fakes import byte_tokenizer
from stentor.tests.server.grammar.walking import KeepingCompiler

BYTES = token_bytes_of(byte_tokenizer(), (257,))
SPECIAL = {"<s>": 256, "</s>": 257}

HOSTILE = [
    'a"\nr1: "b', '"', "\\", '\\"', "\n", "\r\n", "\x00", "\x7f", "\x85", "\u2028", "}\nstart: /.*/", "/ | /.*/", "/i",
    "%json {}", "@g0", "<s>", "a<s>b", "</s>", "//", "#", "# c\nr0: /.*/", "%ignore /.*/", "é日😀", "\\u0041", "\\x41",
    "\\/",
]  # fmt: skip


@pytest.fixture(scope="module")
def bytewise() -> Compiler:
    """Over single bytes, of which each is a token."""
    return KeepingCompiler(BYTES)


def _tokens(text: str) -> list[int]:
    pieces = re.split("(</?s>)", text)
    return [id for piece in pieces for id in ([SPECIAL[piece]] if piece in SPECIAL else piece.encode())]


def accepts(compiler: Compiler, source: str, text: str) -> bool:
    matcher = compiler.compile(source)
    return all(matcher.consume(token) for token in _tokens(text)) and matcher.accepting()


def test_the_grammars_special_tokens_are_the_engines() -> None:
    assert special_tokens_of(byte_tokenizer()) == SPECIAL
    assert set(BYTES.special) == set(SPECIAL.values())


def _is_exactly(compiler: Compiler, source: str, text: str) -> None:
    assert accepts(compiler, source, text)
    assert not accepts(compiler, source, text + "x")
    assert not accepts(compiler, source, text[:-1])
    matcher = compiler.compile(source)
    for token in _tokens(text):
        assert matcher.allowed() == 1 << token, "something else was allowed"
        assert matcher.consume(token)
    assert matcher.allowed() in (0, 1 << 257), "something was allowed behind it"


@pytest.mark.parametrize("text", HOSTILE)
def test_a_literal_of_hostile_text_matches_that_text_alone(bytewise: Compiler, text: str) -> None:
    lark = Lark(SPECIAL)
    _is_exactly(bytewise, lark.source(lark.literal(text)), text)


@settings(max_examples=examples(50, 750), deadline=None)
@given(st.text(min_size=1, max_size=12))
def test_a_literal_of_any_text_matches_that_text_alone(bytewise: Compiler, text: str) -> None:
    lark = Lark(SPECIAL)
    _is_exactly(bytewise, lark.source(lark.rule(lark.literal(text))), text)


@settings(max_examples=examples(40, 400), deadline=None)
@given(st.lists(st.one_of(st.text(max_size=6), st.sampled_from(HOSTILE)), min_size=1, max_size=6, unique=True))
@example(["x", "</s>"])
def test_one_of_several_texts_matches_each_and_nothing_else(bytewise: Compiler, texts: list[str]) -> None:
    lark = Lark(SPECIAL)
    source = lark.source(lark.one_of(texts))
    for text in texts:
        assert accepts(bytewise, source, text)
        for other in (text + "x", "x" + text, text[:-1]):
            # the token that ends an output may follow what is whole
            assert accepts(bytewise, source, other) == (other in texts or other.removesuffix("</s>") in texts)


@settings(max_examples=examples(30, 300), deadline=None)
@given(st.one_of(st.text(max_size=8), st.sampled_from(HOSTILE)))
def test_a_schema_of_any_text_stays_a_schema(bytewise: Compiler, text: str) -> None:
    lark = Lark(SPECIAL)
    schema = {"type": "object", "properties": {text: {"const": text}}, "required": [text],
              "additionalProperties": False, "description": text, text + "x": text}  # fmt: skip
    source = lark.source(lark.rule(f"{lark.json(schema)} {lark.literal('!')}"))
    # what stands for itself in JSON and in Python alike
    plain = all(character.isprintable() or character in "\n\r\t" for character in text)
    if plain and not any(marker in text for marker in SPECIAL):
        assert accepts(bytewise, source, json.dumps({text: text}, ensure_ascii=False, separators=(",", ":")) + "!")
    assert not accepts(bytewise, source, "x!")
    bytewise.compile(source)


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("a/b", "a/b", "a\\/b"), (r"a\/b", "a/b", "ab"), ("[/]", "/", "a"), ("a\nb", "a\nb", "anb"), ("//", "//", "/"),
        (r"\\", "\\", "/"), (r"a\\/", "a\\/", "a"), ("/i", "/i", "/I"), ("(?i)ab", "AB", "a"), (r"^ab$", "ab", "a"),
        (r"\d+", "12", "a"), ("a|b", "b", "ab"), ("#x", "#x", "x"), ("é", "é", "e"), ('"', '"', "'"), ("", "", "a"),
    ],
)  # fmt: skip
def test_a_pattern_matches_as_it_is_written(bytewise: Compiler, pattern: str, matching: str, other: str) -> None:
    lark = Lark(SPECIAL)
    source = lark.source(lark.regex(pattern))
    assert accepts(bytewise, source, matching)
    assert not accepts(bytewise, source, other)


@pytest.mark.parametrize("pattern", ["a\\", "\\\\\\", "a\\\nr1: /.*/"])
def test_a_pattern_that_would_escape_its_own_end_is_refused(pattern: str) -> None:
    with pytest.raises(BadRequest) as refused:
        Lark(SPECIAL).regex(pattern, "structured_outputs.regex")
    assert refused.value.param == "structured_outputs.regex"


@settings(max_examples=examples(60, 1000), deadline=None)
@given(st.text('ab/\\"\n\r[](){}|*+?:;#%i0<>@ start', max_size=14))
def test_no_pattern_can_add_a_rule(bytewise: Compiler, pattern: str) -> None:
    lark = Lark(SPECIAL)
    try:
        source = lark.source(f"{lark.literal('first:')} {lark.regex(pattern)}")
        matcher = bytewise.compile(source)
    except (BadRequest, GrammarError):
        return
    assert source.count("\n") == 2 or (not pattern and source.count("\n") == 1)
    for byte in b"first:":
        assert matcher.allowed() == 1 << byte
        assert matcher.consume(byte)


@pytest.mark.parametrize(
    ("marker", "text"),
    [
        ("</think>", "a < b </think"),
        ("END", "EN EEN"),
        ("</s>", "any\ntext </s"),
        ("\n</s>", "text\n\n"),
        ("a</s>b", "aab"),
    ],
)
def test_text_until_a_marker_ends_with_the_first(bytewise: Compiler, marker: str, text: str) -> None:
    lark = Lark(SPECIAL)
    source = lark.source(f"{lark.text_until(marker)} {lark.literal('!')}")
    if marker != "\n</s>":
        assert accepts(bytewise, source, f"{text}{marker}!")
    assert accepts(bytewise, source, f"{marker}!")
    assert not accepts(bytewise, source, f"{text}!")
    assert not accepts(bytewise, source, f"{marker}{marker}!")


def test_rules_of_a_clients_grammar_are_its_own(bytewise: Compiler) -> None:
    lark = Lark(SPECIAL)
    inner = lark.grammar('start: r0\nr0: "inner"')
    outer = lark.rule(lark.literal("outer"))
    source = lark.source(f"{inner} {outer}")
    assert accepts(bytewise, source, "innerouter")
    assert not accepts(bytewise, source, "outerouter")
    lark = Lark(SPECIAL)
    broken = lark.source(lark.grammar('start: "a"\n}\nr0: /.*/'))
    with pytest.raises(GrammarError):
        bytewise.compile(broken)


class TestThinking:
    """Any text up to the marker, and then the answer."""

    @staticmethod
    def _source(opened: bool, end: str | None = "</think>", begin: str | None = "<think>") -> str:
        lark = Lark(SPECIAL)
        return compose(lark, thinking_end=end, opened=opened, body=lark.one_of(["yes", "no"]), thinking_begin=begin)

    def test_a_model_that_does_not_think_answers_at_once(self, bytewise: Compiler) -> None:
        source = self._source(False, None, None)
        assert accepts(bytewise, source, "yes")
        assert not accepts(bytewise, source, "hm</think>yes")

    def test_a_thought_that_the_prompt_began_must_end(self, bytewise: Compiler) -> None:
        source = self._source(True)
        assert accepts(bytewise, source, "hm\n< no</think>yes")
        assert accepts(bytewise, source, "</think>no")
        assert not accepts(bytewise, source, "yes")
        assert not accepts(bytewise, source, "hm</think>maybe")

    def test_a_thought_may_be_begun_and_be_left_out(self, bytewise: Compiler) -> None:
        source = self._source(False)
        assert accepts(bytewise, source, "yes")
        assert accepts(bytewise, source, "<think>hm</think>no")
        assert not accepts(bytewise, source, "hm</think>no")

    def test_without_a_marker_that_begins_it_text_is_no_thought(self, bytewise: Compiler) -> None:
        assert not accepts(bytewise, self._source(False, begin=None), "hm</think>yes")

    def test_markers_that_are_special_tokens_are_matched_by_id(self, bytewise: Compiler) -> None:
        source = self._source(False, "</s>", "<s>")
        assert accepts(bytewise, source, "<s>hm</s>yes")
        matcher = bytewise.compile(source)
        assert not matcher.allows(ord("<"))

    def test_a_marker_that_is_a_special_token_may_be_forced_behind_any_thought(self, bytewise: Compiler) -> None:
        matcher = bytewise.compile(self._source(True, "</s>", "<s>"))
        for token in _tokens("hm"):
            assert matcher.allows(SPECIAL["</s>"])
            assert matcher.consume(token)
        assert matcher.allows(SPECIAL["</s>"])
        assert not matcher.allows(SPECIAL["<s>"])
        assert matcher.consume(SPECIAL["</s>"]), "asking took nothing"


def test_the_demo_models_own_tokens_serve_too(
    compiler: Compiler, vocabulary: TokenBytes, special: Mapping[str, int]
) -> None:
    lark = Lark(special)
    matcher = compiler.compile(compose(lark, thinking_end="<repo_name>", opened=True, body=lark.literal("ok")))
    assert matcher.allows(special["<repo_name>"])
    assert matcher.consume(special["<repo_name>"])
    assert all(b"ok".startswith(vocabulary.tokens[id]) for id in ids_in(matcher.allowed()))
