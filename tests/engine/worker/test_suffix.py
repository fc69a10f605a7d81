"""What is proposed from past answers: of the same domain alone, bounded, and the way that most have gone."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.engine.worker.speculation.ngram import CANDIDATES
from stentor.engine.worker.speculation.past_answers import PastAnswers
from stentor.engine.worker.speculation.suffix import SuffixProposer, agreed
from stentor.protocols.ipc.config import SpeculativeConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.examples import examples
from stentor.tests.parity import tiny

SUFFIX = SpeculativeConfig("suffix", 8)
TEXT = [7, 3, 9, 4, 8, 5, 6, 2]
DOMAINS = [b"", b"one", b"two"]


def has(text: Sequence[int], part: Sequence[int]) -> bool:
    return any([*text[at : at + len(part)]] == [*part] for at in range(len(text) - len(part) + 1))


ANSWERS = st.lists(st.tuples(st.sampled_from(DOMAINS), st.lists(st.integers(0, 3), max_size=30)), max_size=25)


@settings(max_examples=examples(100), deadline=None)
@given(answers=ANSWERS, asked=st.lists(st.integers(0, 3), min_size=1, max_size=12), most=st.integers(0, 9))
def test_what_is_found_stands_in_an_answer_of_the_same_domain_that_is_not_forgotten(
    answers: list[tuple[bytes, list[int]]], asked: list[int], most: int
) -> None:
    past = PastAnswers(6, most, 2, 8)
    known: list[tuple[bytes, list[int]]] = []
    for domain, answer in answers:
        past.add(domain, answer)
        known += [(domain, answer[-16:])] if len(answer) >= 2 else []
        assert len(past) <= min(most, 64 // 3)
        left = known[len(known) - len(past) :]
        compares_all = sum(len(text) for _, text in left) <= CANDIDATES
        for ours in DOMAINS:
            texts = [text for other, text in left if other == ours]
            same, places = past.places(ours, asked)
            for place in places:
                whole = [*asked[-same:], *past.behind(place, 5)]
                assert any(has(text, whole) for text in texts), (whole, texts)
            if compares_all and len(asked) >= 2:
                assert bool(places) == any(has(text, asked[-2:]) for text in texts)


def test_the_latest_answers_are_known_and_the_oldest_forgotten_by_number_and_by_tokens() -> None:
    by_number, by_tokens = PastAnswers(10, 3, 2, 8), PastAnswers(6, 100, 2, 8)
    for first in range(0, 100, 10):
        answer = [*range(first, first + 10)]
        by_number.add(b"", answer)
        by_tokens.add(b"", answer)
    for past, left in ((by_number, 3), (by_tokens, 5)):
        assert len(past) == left
        found = [first for first in range(0, 100, 10) if past.places(b"", [first + 2, first + 3])[1]]
        assert found == [*range(100 - 10 * left, 100, 10)]


def test_an_answer_longer_than_its_part_of_the_ring_is_known_by_its_end() -> None:
    past = PastAnswers(6, 9, 2, 8)
    past.add(b"", [*range(1000)])
    assert not past.places(b"", [500, 501])[1]
    same, (place,) = past.places(b"", [990, 991])
    assert (same, past.behind(place, 20)) == (2, [992, 993, 994, 995, 996, 997, 998, 999])


def test_a_domain_whose_answers_are_all_forgotten_leaves_nothing() -> None:
    past = PastAnswers(10, 2, 2, 8)
    for salt in range(50):
        past.add(str(salt).encode(), TEXT)
    assert len(past._domains) == 2


@pytest.mark.parametrize(
    ("ways", "least", "drafts"),
    [
        ([], 0.1, []),
        ([[]], 0.0, []),
        ([[1, 2, 3]], 1.0, [1, 2, 3]),
        ([[1, 2, 3], [1, 2, 4], [5]], 0.1, [1, 2, 3]),
        ([[5], [1, 2, 3], [1, 2, 4]], 0.5, [1, 2]),
        ([[1], [1], [1, 2, 3]], 0.1, [1, 2, 3]),
        ([[1], [1], [1, 2, 3]], 0.5, [1]),
        ([[1], [2]], 0.9, []),
    ],
)
def test_drafts_go_the_way_that_most_have_gone_as_far_as_enough_of_all_went_it(
    ways: list[list[int]], least: float, drafts: list[int]
) -> None:
    assert agreed(ways, least) == drafts


def _entered(proposer: SuffixProposer, slot: int, tokens: list[int], domain: bytes) -> None:
    prompt_len = len(tokens)
    proposer.enter(NewRow(slot, tokens, prompt_len, SamplingParams(max_tokens=9), 0, [], domain=domain))


def test_an_answer_is_proposed_to_rows_of_its_domain_and_to_no_others() -> None:
    proposer = SuffixProposer(4, SUFFIX)
    _entered(proposer, 0, [1], b"ours")
    proposer.append(0, TEXT)
    proposer.remove(0)
    proposer.remove(0)  # a free slot stays as it is
    for slot, domain in enumerate([b"ours", b"", b"theirs", b"ours"]):
        _entered(proposer, slot, [5, 1, *TEXT[:3]], domain)
    assert proposer.propose(dict.fromkeys(range(4), 8)) == {0: TEXT[3:6], 3: TEXT[3:6]}, "as many as are the same"
    assert proposer.propose({0: 2}) == {0: TEXT[3:5]}
    assert not SuffixProposer(4, SUFFIX)._past.places(b"ours", TEXT[:3])[1], "another worker begins without any"


def test_what_a_prompt_holds_is_proposed_to_its_own_row_alone() -> None:
    proposer = SuffixProposer(2, SUFFIX)
    _entered(proposer, 0, [*TEXT, 1, *TEXT[:2]], b"")
    assert proposer.propose({0: 8}) == {0: TEXT[2:4]}
    proposer.append(0, [9, 9, 9])
    proposer.remove(0)
    _entered(proposer, 1, TEXT[:2], b"")
    assert proposer.propose({1: 8}) == {}


def test_a_way_that_was_wrong_is_passed_over_for_longer_each_time() -> None:
    proposer = SuffixProposer(1, SUFFIX)
    _entered(proposer, 0, [5, 6, 1, 5, 6], b"")
    asked = []
    for _ in range(12):
        asked.append(bool(proposer.propose({0: 4})))
        if asked[-1]:
            proposer.verified(0, 2, 0)
    assert asked == [True, False, True, *[False] * 3, True, *[False] * 5]


def test_nothing_is_remembered_where_no_requests_are_to_be() -> None:
    proposer = SuffixProposer(1, SpeculativeConfig("suffix", suffix_decoding_max_cached_requests=0))
    assert proposer.most == 24
    _entered(proposer, 0, [1], b"")
    proposer.append(0, TEXT)
    proposer.remove(0)
    _entered(proposer, 0, TEXT[:3], b"")
    assert proposer.propose({0: 8}) == {}


def test_the_second_answer_of_a_salt_takes_fewer_steps_and_is_the_same(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path, layers=2)
    sizes = {"max_model_len": 96, "kv_cache_memory": 2 << 20, "batch_invariant": True}
    plain = LocalEngine(model_config(tmp_path, **sizes))
    drafting = LocalEngine(model_config(tmp_path, speculative=SUFFIX, **sizes))
    rng = random.Random(4)
    prompt = [rng.randrange(3, tiny.VOCAB) for _ in range(9)]
    params = SamplingParams(max_tokens=60, temperature=1.0)
    expected = plain.generate(prompt, params, seed=5)
    steps = []
    for salt in ("", "other", "", "other", "third"):
        before = drafting.steps
        rid = drafting.submit(prompt, params, [5], salt)
        drafting.run(check=True)
        assert drafting.outcomes[rid, 0].tokens == expected
        steps.append(drafting.steps - before)
    first, other, again, other_again, third = steps
    assert first == other == third, "what another salt has drawn is no proposal"
    assert max(again, other_again) < first // 3
