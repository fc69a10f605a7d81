"""Prompt lookup: what an index proposes, and what it forgets."""

import random

import pytest

from stentor.engine.worker.speculation.ngram import NgramIndex, NgramProposer
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow


def test_what_followed_the_last_tokens_is_proposed() -> None:
    assert NgramIndex([1, 2, 3, 4, 5, 9, 1, 2, 3], 2, 5).propose(3) == [4, 5, 9]


def test_a_longer_match_counts_more_than_a_later_one() -> None:
    text = [7, 1, 2, 3, 50, 8, 1, 2, 60, 3, 7, 1, 2, 3]
    assert NgramIndex(text, 2, 5).propose(1) == [50]
    assert NgramIndex([1, 2, 50, 1, 2, 60, 1, 2], 2, 5).propose(1) == [60], "of equal ones the latest counts"


def test_no_more_tokens_than_the_most_are_compared() -> None:
    text = [5, 1, 2, 3, 50, 6, 1, 2, 3, 60, 5, 1, 2, 3]
    assert NgramIndex(text, 2, 3).propose(1) == [60]
    assert NgramIndex(text, 2, 4).propose(1) == [50]


def test_fewer_tokens_than_the_least_are_no_match() -> None:
    assert NgramIndex([1, 2, 3, 9, 3], 2, 5).propose(4) == []
    assert NgramIndex([1, 2, 3, 9, 3], 1, 5).propose(1) == [9]


@pytest.mark.parametrize("text", [[4], [4, 4], [4, 5, 6]])
def test_a_text_that_has_nothing_behind_it_proposes_nothing(text: list[int]) -> None:
    assert NgramIndex(text, 2, 5).propose(4) == []


def test_a_text_that_repeats_itself_is_continued_beyond_its_end() -> None:
    assert NgramIndex([1, 2, 3, 1, 2, 3, 1, 2], 2, 5).propose(7) == [3, 1, 2, 3, 1, 2, 3]


def test_an_ngram_that_was_wrong_is_passed_over_for_longer_each_time() -> None:
    index = NgramIndex([1, 2, 9, 1, 2], 2, 2)
    passed = []
    for _ in range(3):
        assert index.propose(1) == [9]
        index.verified(0)
        passed.append(0)
        while not index.propose(1):
            passed[-1] += 1
    assert passed == [1, 3, 7]
    index.verified(1)
    assert index.propose(1) == [9], "once right, it is proposed at once"


@pytest.mark.parametrize(("least", "tokens"), [(1, 12), (2, 12), (2, 4), (3, 3)])
def test_an_index_that_has_grown_proposes_what_one_made_at_once_does(least: int, tokens: int) -> None:
    """Of so few n-grams that no two have one chain it is what the definition says."""
    rng = random.Random(least)
    text = [rng.randrange(tokens) for _ in range(2500)]
    grown = NgramIndex(text[:5], least, 4)
    for at in range(5, len(text)):
        if at % 97 == 0:
            found = NgramIndex(text[:at], least, 4).propose(6)
            assert grown.propose(6) == found
            if tokens**least < 30:
                assert found == _expected(text[:at], least, 4)
        grown.append(text[at])


def _expected(text: list[int], least: int, most: int) -> list[int]:
    """From the definition, over the eight latest places."""
    last = len(text)
    places = [end for end in range(last - 1, least - 1, -1) if text[end - least : end] == text[-least:]][:8]
    if not places:
        return []
    same = [next((n for n in range(most) if end <= n or text[end - 1 - n] != text[-1 - n]), most) for end in places]
    place = places[same.index(max(same))]
    found: list[int] = []
    for at in range(place, place + 6):
        found.append(text[at] if at < last else found[at - last])
    return found


def enter(proposer: NgramProposer, slot: int, tokens: list[int]) -> None:
    proposer.enter(NewRow(slot, tokens, len(tokens), SamplingParams(max_tokens=9), 0, []))


def test_rows_do_not_see_each_other_and_a_slot_forgets_who_left_it() -> None:
    proposer = NgramProposer(2, 4, 2, 5)
    enter(proposer, 0, [1, 2, 3, 1])
    enter(proposer, 1, [1, 2, 4, 1])
    proposer.append(0, [2])
    assert proposer.propose({0: 2, 1: 2}) == {0: [3, 1]}
    proposer.remove(0)
    enter(proposer, 0, [1, 2])
    assert proposer.propose({0: 2}) == {}
    proposer.remove(1)
    with pytest.raises(ValueError, match="slot 1 holds no row"):
        proposer.propose({1: 2})
