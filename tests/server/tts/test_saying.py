# ruff: noqa: RUF001
"""What is written only to be seen is not said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.server.tts.sentences import sayable


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("Hello, ", "Hello,"),
        ("**Bold** and *slanted* and `code` and ~~gone~~.", "Bold and slanted and code and gone."),
        ("## A heading\n", "A heading"),
        ("- an item\n", "an item"),
        ("> a quote", "a quote"),
        ("See [the page](https://example.com/x) now.", "See the page now."),
        ("![a cat](cat.png)", "a cat"),
        ("| a | b |\n", "a, b,"),
        ("---\n", ""),
        ("```python\n", ""),
        ("Fine 😀👍🏽 then ❤️.", "Fine then ."),
        ("<b>Yes</b><br/>", "Yes"),
        ("Stop<|eot_id|> <custom_token_2>here </s>now.", "Stop here now."),
        ("3 < 4 and 2 * 3 = 6", "3 < 4 and 2 * 3 = 6"),
        ("snake_case and _this_ too", "snake_case and this too"),
        ("two\nlines\tand\x00 more", "two lines and more"),
        ("20 °C for 5 €", "20 °C for 5 €"),
        ("[[ˈraw phonemes]] are words", "ˈraw phonemes are words"),
        ("?!…", ""),
        ("", ""),
    ],
)
def test_marks_go_and_words_stay(written: str, said: str) -> None:
    assert sayable(written) == said


def test_marks_that_the_model_reads_stay() -> None:
    assert sayable("Oh <laugh> <b>no</b> <sigh>.", frozenset(("laugh",))) == "Oh <laugh> no ."


@given(st.lists(st.sampled_from([*"ab *_`#[]()<>|~-\n!.😀", "**", "](", "```", "\ud800"]), max_size=200).map("".join))
def test_what_is_said_is_one_line_with_something_in_it_or_nothing(text: str) -> None:
    said = sayable(text)
    assert said == " ".join(said.split())
    assert "[" not in said
    assert not said or any(map(str.isalnum, said))
    said.encode()
