# ruff: noqa: RUF001
"""Where text is cut, and that nothing of it is lost."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stentor.server.tts.sentences import FIRST_CHARS, MOST_CHARS, WHOLE_CHARS, SentenceSplitter, WholeText
from stentor.tests.examples import examples


def split(text: str) -> list[str]:
    splitter = SentenceSplitter()
    return [*splitter.push(text), *splitter.finish()]


def streamed(text: str, sizes: list[int]) -> list[str]:
    splitter = SentenceSplitter()
    pieces, at = [], 0
    for number in range(len(text) + 1):
        size = sizes[number % len(sizes)]
        pieces += splitter.push(text[at : at + size])
        at += size
        if at >= len(text):
            break
    return [*pieces, *splitter.finish()]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Hello there. How are you? Fine!", ["Hello there.", "How are you?", "Fine!"]),
        # what a point is not the end of
        ("It costs 3.14 dollars today. See a.txt now.", ["It costs 3.14 dollars today.", "See a.txt now."]),
        ("Dr. Smith met J. R. Tolkien. They spoke.", ["Dr. Smith met J. R. Tolkien.", "They spoke."]),
        ("We left at 5 p.m. He stayed. See No. 5 there.", ["We left at 5 p.m.", "He stayed.", "See No. 5 there."]),
        ("No. That is wrong.", ["No.", "That is wrong."]),
        ("We need it, e.g. for tea. The U.S. Army has it.", ["We need it,", "e.g. for tea.", "The U.S. Army has it."]),
        ("So am I. You know.", ["So am I.", "You know."]),
        # dots and quotes
        ("He waited... and left. Well… Ok.", ["He waited... and left.", "Well…", "Ok."]),
        ('"Really?" she asked. "Yes!" He nodded.', ['"Really?" she asked.', '"Yes!"', "He nodded."]),
        ("(It is so.) And so on?! Oh.", ["(It is so.)", "And so on?!", "Oh."]),
        ("sure! what is up? all fine", ["sure!", "what is up?", "all fine"]),
        # lines
        ("A line that is\nwrapped at some place. Two.", ["A line that is\nwrapped at some place.", "Two."]),
        ("# A heading\nAnd text\n\nMore", ["# A heading", "And text", "More"]),
        (
            "Things:\n- one\n- two\n1. First thing. Yes\n2. Second",
            ["Things:", "- one", "- two", "1. First thing.", "Yes", "2. Second"],
        ),
        # other scripts
        ("你好，世界。今天天气很好！我们走吧？好", ["你好，世界。", "今天天气很好！", "我们走吧？", "好"]),
        ("「そうですか。」と言った。", ["「そうですか。」", "と言った。"]),
        # the first piece may be a clause, if it is not too short; later ones are whole
        (
            "Oh, well, that is so. One, two, and three things.",
            ["Oh, well,", "that is so.", "One, two, and three things."],
        ),
        ("", []),
        ("   ", ["   "]),
    ],
)
def test_text_is_cut_where_sentences_end(text: str, pieces: list[str]) -> None:
    assert [piece.strip() for piece in split(text)] == [piece.strip() for piece in pieces]


PARTS = [*"abAB1 ,.!?…\"')”\n-*#:;。，「」", "e.g. ", "Dr. ", ". ", ", ", "\n\n", "```", " and "]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=700).map("".join)


@settings(max_examples=examples(75, 1500), deadline=None)
@given(TEXTS, st.lists(st.integers(1, 40), min_size=1, max_size=5))
@example("a" * 2000, [1])
@example("word " * 400, [7])
@example("." * 1500, [3])
@example(" \n" * 700, [2])
@example("a.\n" * 400, [1])
@example("Hello there.\nab, c " * 30, [1])
def test_no_text_is_lost_however_it_comes_and_it_is_cut_at_the_same_places(text: str, sizes: list[int]) -> None:
    pieces = split(text)
    assert "".join(pieces) == text
    assert all(pieces)
    assert streamed(text, sizes) == pieces
    assert all(len(piece) <= MOST_CHARS for piece in pieces)


@settings(max_examples=examples(60, 1000), deadline=None)
@given(st.text(max_size=600), st.integers(1, 9))
def test_any_characters_at_all_are_kept(text: str, size: int) -> None:
    assert streamed(text, [size]) == split(text)
    assert "".join(split(text)) == text


def test_the_first_piece_of_a_long_sentence_is_short_and_ends_between_words() -> None:
    text = "I think that the most interesting thing about this particular question is that nobody knows it at all."
    first, *rest = split(text)
    assert len(first) <= FIRST_CHARS
    assert first.endswith(" ")
    assert rest[0].startswith("about ")  # where one would breathe


def test_a_sentence_without_end_is_cut_at_clauses() -> None:
    text = "Yes. " + "this goes on and on, as such things do, " * 30
    _, *pieces = split(text)
    assert all(re.search(r", $", piece) for piece in pieces)
    assert max(map(len, pieces)) > MOST_CHARS / 2


def test_a_piece_is_known_as_soon_as_the_next_word_begins() -> None:
    splitter = SentenceSplitter()
    assert splitter.push("Hello there.") == []
    assert splitter.push(" ") == []
    assert splitter.push("A") == ["Hello there. "]
    assert splitter.push("nd then, it was over") == []
    assert splitter.finish() == ["And then, it was over"]


def test_what_takes_longer_to_say_is_cut_shorter() -> None:
    def longest(text: str, speed: float) -> int:
        splitter = SentenceSplitter(speed)
        return max(map(len, [*splitter.push("Yes. " + text), *splitter.finish()]))

    words, numbers, signs = "word " * 200, "3.14159 " * 100, "你好世界" * 100
    assert MOST_CHARS - 5 <= longest(words, 1.0) <= MOST_CHARS
    assert longest(words, 4.0) == longest(words, 1.0)
    assert longest(words, 0.5) <= MOST_CHARS / 2
    assert longest(words, 0.25) <= MOST_CHARS / 4
    assert longest(numbers, 1.0) < MOST_CHARS / 3
    assert longest(signs, 1.0) == MOST_CHARS / 4


def test_a_text_that_is_not_to_be_cut_is_one_piece_unless_it_is_very_long() -> None:
    splitter = WholeText()
    assert [splitter.push(delta) for delta in ("A calm piano. ", "With drums.")] == [[], []]
    assert splitter.finish() == ["A calm piano. With drums."]
    long = "ab" * WHOLE_CHARS
    assert splitter.push(long) == [long[:WHOLE_CHARS]]
    assert splitter.finish() == [long[WHOLE_CHARS:]]
    assert splitter.finish() == []
