"""Patterns that end a text, compared with the standard library's."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stentor.server.text.output.stop import StopMatcher, StopStrings
from stentor.server.text.output.stop_patterns import MAX_POSITIONS, PatternMatcher, PatternRefused, StopPatterns

ONES = st.sampled_from(("a", "b", r"\.", ".", "[ab]", "[^a]", r"[^a\d]", r"\d", r"\S", r"[\w-]", "[b-d]", "é", r"\n"))
PATTERNS = st.recursive(
    ONES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda some: f"(?:{'|'.join(some)})"),
        st.tuples(inner, st.sampled_from(("*", "+", "?", "*?", "{2}", "{0,2}", "{1,3}?", "{2,}", "{0}"))).map(
            lambda both: f"({both[0]}){both[1]}"
        ),
    ),
    max_leaves=6,
)
TEXTS = st.text("abc1.é\n-", max_size=12)


def first_end(patterns: list[str], text: str) -> tuple[int, str] | None:
    """Where the first match ends, and the first pattern of which one does."""
    for end in range(1, len(text) + 1):
        for pattern in patterns:
            if any(re.compile(pattern).fullmatch(text, start, end) for start in range(end + 1)):
                return end, pattern
    return None


@given(st.lists(PATTERNS, min_size=1, max_size=3), TEXTS, st.integers(1, 4))
@example(["(a|ab)(c|bcd)*"], "xabcd", 2)
@example(["(?:a{2}){2,}b"], "aaaaaab", 3)
def test_a_text_ends_where_the_first_match_does_however_it_is_cut(patterns: list[str], text: str, size: int) -> None:
    empty = next((place for place, pattern in enumerate(patterns) if re.fullmatch(pattern, "")), None)
    if empty is not None:
        with pytest.raises(PatternRefused, match="empty") as refused:
            StopPatterns(patterns)
        assert refused.value.place == empty
        return
    expected = first_end(patterns, text)
    matcher = PatternMatcher(StopPatterns(patterns), None)
    shown = "".join(matcher.push(text[place : place + size]) for place in range(0, len(text), size)) + matcher.finish()
    assert (shown, matcher.matched) == (text if expected is None else text[: expected[0]], expected and expected[1])


@given(TEXTS, st.integers(1, 4), st.booleans())
def test_a_stop_string_that_ends_first_or_at_the_same_character_is_cut_as_ever(
    text: str, size: int, include: bool
) -> None:
    strings = StopMatcher(StopStrings(["bc", "1"]), include=include)
    matcher = PatternMatcher(StopPatterns([r"c|\."]), strings)
    shown = "".join(matcher.push(text[place : place + size]) for place in range(0, len(text), size)) + matcher.finish()
    string, pattern = re.search("bc|1", text), re.search(r"c|\.", text)
    if string is not None and (pattern is None or string.end() <= pattern.end()):
        assert (shown, matcher.matched) == (text[: string.end() if include else string.start()], string[0])
    elif pattern is not None:
        assert (shown, matcher.matched) == (text[: pattern.end()], r"c|\.")
    else:
        assert (shown, matcher.matched) == (text, None)


def test_a_match_that_ends_before_the_choice_may_does_not_count() -> None:
    matcher = PatternMatcher(StopPatterns(["ab+"]), None)
    assert matcher.push("ab", armed=False) == "ab"
    assert matcher.matched is None
    assert matcher.push("bb") == "b"
    assert matcher.matched == "ab+"
    assert matcher.push("c") == ""


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "is no pattern"),
        ("a**", "is no pattern"),
        ("(" * 900 + "a" + ")" * 900, "is no pattern"),
        ("a*", "empty text"),
        ("()", "empty text"),
        ("a$", "an anchor or a boundary of words"),
        (r"\ba", "an anchor or a boundary of words"),
        ("a(?=b)", "a look-around"),
        ("(?<!b)a", "a look-around"),
        (r"(a)\1", "a reference to a group"),
        ("a++", "a possessive repetition"),
        ("(?>ab)", "an atomic group"),
        ("(?i)a", "flags"),
        ("a(?i:b)", "flags"),
        (f"a{{{MAX_POSITIONS + 1}}}", "characters"),
        ("(((a{9}){9}){9}){9}", "characters"),
        ("a{0,4294967294}", "characters"),
        ("[0-12-34-56-78-9abcdefghijklmnopqr]{50}", "sets"),
    ],
)
def test_what_the_text_so_far_does_not_decide_or_takes_long_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(PatternRefused, match=why):
        StopPatterns([pattern])


def test_a_pattern_over_which_others_take_forever_costs_a_look_up_a_character() -> None:
    compiled = StopPatterns(["(a+)+(a+)+(a*)*b", "(a|aa)+$".removesuffix("$") + "c", "x" * 20 + "[xy]{0,99}z"])
    matcher = PatternMatcher(compiled, None)
    matcher.push("ax" * 10_000 + "a" * 10_000)
    assert matcher.matched is None
    assert len(compiled._transitions) < 100
