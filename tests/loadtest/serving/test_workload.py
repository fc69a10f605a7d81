"""Made-up sessions: the same from the same seed, and of the shape that was asked for."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.loadtest.serving.lengths import Lengths, constant, parse_lengths
from stentor.loadtest.serving.workload import WORDS, Random, Session


def _random(seed: int = 1, turns: Lengths = constant(1), **options: object) -> Random:  # noqa: B008
    made = Random(seed, parse_lengths("uniform:5:40"), parse_lengths("uniform:1:9"), turns, parse_lengths("0", 0))
    return msgspec.structs.replace(made, **options)


def _numbered(workload: Random, numbers: range = range(20)) -> list[Session]:
    return [workload.session(number) for number in numbers]


@given(st.integers(0, 2**40), st.permutations(range(6)))
def test_a_session_depends_on_seed_and_number_alone(seed: int, order: list[int]) -> None:
    workload = _random(seed, turns=parse_lengths("uniform:1:3"), prefixes=3, prefix_tokens=4)
    shuffled = {number: workload.session(number) for number in order}
    again = _random(seed, turns=parse_lengths("uniform:1:3"), prefixes=3, prefix_tokens=4)
    assert [shuffled[number] for number in range(6)] == _numbered(again, range(6))


def test_another_seed_asks_something_else_and_sessions_differ() -> None:
    first, second = _numbered(_random(1)), _numbered(_random(2))
    assert not {session.turns[0].text for session in first} & {session.turns[0].text for session in second}
    assert len({session.turns[0].text for session in first}) == 20


def test_what_warms_up_is_not_measured() -> None:
    measured = {session.turns[0].text for session in _numbered(_random())}
    assert not measured & {session.turns[0].text for session in _numbered(_random(), range(-20, 0))}


def test_prompts_in_words_have_as_many_words_as_tokens_were_asked_for() -> None:
    (turn,) = _random(inputs=constant(300)).session(0).turns
    assert len(turn.text.split()) == 300
    assert set(turn.text.split()) <= set(WORDS)
    assert len(set(WORDS)) == len(WORDS)


def test_prompts_in_ids_have_their_length_and_stay_in_their_range() -> None:
    ids = [session.turns[0].tokens or [] for session in _numbered(_random(inputs=constant(200), token_range=(50, 60)))]
    assert {len(one) for one in ids} == {200}
    assert {token for one in ids for token in one} == set(range(50, 60))


@pytest.mark.parametrize("token_range", [None, (100, 9000)])
def test_prefixes_are_shared_and_all_of_them_are_used(token_range: tuple[int, int] | None) -> None:
    workload = _random(prefixes=4, prefix_tokens=12, token_range=token_range)
    beginnings: set[object] = set()
    for session in _numbered(workload, range(60)):
        if token_range is None:
            (system,) = session.opening
            assert system.role == "system"
            beginnings.add(system.content)
            assert len(system.content.split()) == 12
        else:
            beginnings.add(tuple((session.turns[0].tokens or [])[:12]))
    assert len(beginnings) == 4


def test_conversations_have_their_turns_and_think_between_them_only() -> None:
    workload = _random(turns=parse_lengths("uniform:2:4"), think=constant(1.5))
    sessions = _numbered(workload, range(50))
    assert {len(session.turns) for session in sessions} == {2, 3, 4}
    assert all(session.turns[0].think == 0 for session in sessions)
    assert all(turn.think == 1.5 for session in sessions for turn in session.turns[1:])


def test_every_parameter_is_described() -> None:
    described = _random(prefixes=2, prefix_tokens=5).describe()
    assert described["kind"] == "random"
    bounds = {"least": 5.0, "greatest": 40.0}
    assert described["inputs"] == {"form": "uniform", "first": 5.0, "second": 40.0, **bounds}
    assert (described["prefixes"], described["prefix_tokens"], described["seed"]) == (2, 5, 1)
