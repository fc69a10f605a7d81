"""Whether a transcript reads as complete, and how long its pause must be."""

import pytest

from stentor.server.api.realtime.listening.completeness import Completeness, Eagerness, read, wait_ms
from stentor.server.api.realtime.listening.turns import SEMANTIC_MAX_MS


@pytest.mark.parametrize(
    ("said", "reading"),
    [
        ("What is the capital of France?", Completeness.COMPLETE),
        ("Where are you from?", Completeness.COMPLETE),
        ("Book a table for two.", Completeness.COMPLETE),
        ('She said "yes."', Completeness.COMPLETE),
        ("你好吗\uff1f", Completeness.COMPLETE),
        ("I would like to", Completeness.OPEN),
        ("I would like to go to the.", Completeness.OPEN),
        ("My number is, um", Completeness.OPEN),
        ("Well, uh.", Completeness.OPEN),
        ("I'd like a coffee and", Completeness.OPEN),
        ("On the one hand,", Completeness.OPEN),
        ("So I was thinking...", Completeness.OPEN),
        ("And then, because?", Completeness.OPEN),
        ("twenty three forty", Completeness.UNSURE),
        ("", Completeness.UNSURE),
        (" ... ", Completeness.UNSURE),
    ],
)
def test_a_transcript_is_judged_by_how_it_ends(said: str, reading: Completeness) -> None:
    assert read(said) is reading


@pytest.mark.parametrize("eagerness", ["low", "medium", "high", "auto"])
def test_what_is_complete_waits_least_and_nothing_waits_longer_than_is_documented(eagerness: Eagerness) -> None:
    waits = [wait_ms(said, eagerness) for said in ("Stop it.", "twenty three", "I want to")]
    assert waits == sorted(set(waits))
    assert waits[-1] == SEMANTIC_MAX_MS[eagerness]


def test_the_more_eager_the_shorter_the_wait() -> None:
    for said in ("Stop it.", "twenty three", "I want to"):
        high, medium, low = (wait_ms(said, eagerness) for eagerness in ("high", "medium", "low"))
        assert high < medium < low
        assert medium == wait_ms(said, "auto")


def test_a_caller_who_makes_long_pauses_is_waited_for_longer() -> None:
    assert wait_ms("twenty three", "medium", 2000) == 2600
    assert wait_ms("twenty three", "medium", 9000) == SEMANTIC_MAX_MS["medium"]
    assert wait_ms("Stop it.", "medium", 2000) == wait_ms("Stop it.", "medium")
