"""A pattern that was turned matches a text's JSON where the pattern itself matches the text, and nothing else."""

import json
import re
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stentor.engine.core.grammar.matcher import Compiler, GrammarError
from stentor.server.grammar.quoted_regex import CHANGED, UnquotableError, quoted_literal, quoted_pattern, quoted_text
from stentor.server.text.tokenizers.grammar_tokens import token_bytes_of
from stentor.tests.examples import examples
from stentor.tests.fakes import byte_tokenizer
from stentor.tests.server.grammar.walking import matches

ALPHABET = "abzAZ09_- é日😀\"\\/\n\t\r\b\f\v\x00\x1f\x7f\u2028.[](){}*+?|^$#&~<>'"
PATTERNS = [
    "a+", ".", "(?s:.)", '"', '"+', '[^"]', r"[^\\]*", r"\\+", r"[\n\t]+", "[a-z\n]", r"[\x00-\x1f]",
    r"\x0a|\u0022|\x{5c}", r"[!-~]+", r"\s+", r"\S+", r"\w+", r"\W", r"\d*", r"\D+", "[[:alpha:]]", "[[:^alpha:]]",
    "[[:punct:]]+", "[[:cntrl:]]", "[[:space:]]+", "[[:blank:]]", "[[:print:]]*", "[[:graph:]]", "[[:ascii:]]",
    r"\p{L}+", r"\PL", r"\p{Cc}", r"[\p{P}\n]", r"\P{Po}", r"[a&&[^b]]", r'[[\x00-~]--["]]', r"[\s~~\n]+", "[]a]",
    "[^]a]", "[-a]", "[a-]", "[--a]", "[^-\n]", r"[\]\\]", r"[\d--5]", r'["-\\]', "a{2}", '"{1,2}', "(a|\n)*",
    "(?:ab)?\n", "(?P<n>a)(?<m>\t)", "(?i)ab\n", "(?i:a)(b)", "(?i)a(?-i)b\n", "(?i)[a\n]", "(?x) a b # c\n \\n",
    "(?x)[ a \n]", "(?s).(?-s).", "a*?b", "^a$", "^\n", "a\\$", r"\.\[\/\-\"", "é|[à-ü]", "/", r"\/", r"\t\r\f\v\a",
    "(?U)a+", "(?m)a.", r"[\w\"]+", r"[^\s\w]", "[\\\\/]", r"[a-z&&\p{L}--[b-y]]", "(((a)))", "a||b", "()", "\n",
    "\u2028", "(?i-s:a.)", "[#x]", "(?x)[#\nx]",
]  # fmt: skip
INNER = [pattern for pattern in PATTERNS if not pattern.startswith(("^", "(?P")) and not pattern.endswith("$")]
CHARACTERS = [*sorted(CHANGED), *" !#-/059:AKSZ[]abz~\x7fé日😀\u2028\u017f\u212a"]


@pytest.fixture(scope="module")
def bytewise() -> Compiler:
    return Compiler(token_bytes_of(byte_tokenizer(), (257,)))


def taking(compiler: Compiler, pattern: str) -> Callable[[str], bool]:
    """Whether the pattern matches all of a text."""
    escaped = re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", pattern)
    compiled = compiler.compile(f"start: T\nT: /{escaped}/" if escaped else 'start: ""')

    return lambda text: matches(compiled.copy(), text.encode())


def written(text: str) -> str:
    """By somebody else's hand."""
    return "".join(json.dumps(one)[1:-1] if one in '"\\' or one < " " else one for one in text)


@given(st.text())
def test_a_quoted_text_is_json_of_the_text(text: str) -> None:
    assert json.loads(f'"{quoted_text(text)}"') == text
    assert quoted_text(text) == written(text)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_character_is_taken_as_before(bytewise: Compiler, pattern: str) -> None:
    before, after = taking(bytewise, pattern), taking(bytewise, quoted_pattern(pattern))
    for text in [*CHARACTERS, "", "ab", "a\n", "\n\n", '""', "\\\\", "AB\n", "a\nb"]:
        assert before(text) == after(quoted_text(text)), text


@settings(max_examples=examples(30, 300), deadline=None)
@given(st.sampled_from(INNER), st.sampled_from(INNER), st.text(ALPHABET, max_size=4))
@example("(?i)ab\n", ".", 'AB\n"')
def test_patterns_of_patterns_take_the_same_texts(bytewise: Compiler, one: str, two: str, text: str) -> None:
    for pattern in (f"(?:{one}\n)(?:{two}\n)?", f"(?:(?:{one}\n)|{two}\n)*"):
        assert taking(bytewise, pattern)(text) == taking(bytewise, quoted_pattern(pattern))(quoted_text(text))


@settings(max_examples=examples(40), deadline=None)
@given(st.sampled_from(PATTERNS), st.text('"\\nu0041bx', max_size=8))
def test_what_is_matched_is_always_the_inside_of_a_string(bytewise: Compiler, pattern: str, text: str) -> None:
    if taking(bytewise, quoted_pattern(pattern))(text):
        said = json.loads(f'"{text}"')
        assert taking(bytewise, pattern)(said), said


@settings(max_examples=examples(30, 300), deadline=None)
@given(st.text(ALPHABET, min_size=1, max_size=6))
def test_a_literal_matches_its_text_alone(bytewise: Compiler, text: str) -> None:
    takes = taking(bytewise, quoted_literal(text))
    assert takes(quoted_text(text))
    assert not takes(quoted_text(text) + "x")


@settings(max_examples=examples(40, 1000), deadline=None)
@given(st.text('ab^-[]\\&~:|(){}?*+.$ins,5pPdDxu"\n#', max_size=12), st.sampled_from(["", "i", "x", "s", "ix"]))
def test_any_text_is_a_pattern_that_can_be_turned_or_is_refused(bytewise: Compiler, pattern: str, flags: str) -> None:
    try:
        turned = quoted_pattern(pattern, flags)
    except UnquotableError:
        return
    try:
        before = taking(bytewise, f"(?{flags}:{pattern})" if flags else pattern)
    except GrammarError:
        return
    after = taking(bytewise, turned)
    for text in ("", "a", "b", "ab", *sorted(CHANGED)[8:14], '"', "\\", "-", "^", "]", "[", "A", "5"):
        assert before(text) == after(quoted_text(text)), (text, turned)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(?-u)a", "flags"), ("(?R)a", "flags"), (r"\p{Nonsense}", "Nonsense"), ("(a", "not closed"),
        ("a)", "not opened"),
        ("[a", "not closed"), ("a^b", "inside"), ("(?=a)", "kind"), (r"\b", r"\b"), ("a{b}", "number"),
        ("[b-a]", "range"),
        ("[" * 60, "deeply"), (r"\u{110000}", "character"), ("[[:nope:]]", "nope"), ("a\\", "escape"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_named(pattern: str, said: str) -> None:
    with pytest.raises(UnquotableError, match=said.replace("\\", r"\\")):
        quoted_pattern(pattern)
