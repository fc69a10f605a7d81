"""Sequences that may not be drawn, alone and beside a grammar."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.engine.core.grammar.constraint import BadWords, ParameterSets, TokenConstraint, endings_of
from stentor.engine.core.grammar.token_sets import ids_in
from stentor.protocols.ipc.sampling import SamplingParams

SIZE = 6
TOKENS = st.integers(0, SIZE - 1)
SEQUENCES = st.lists(st.lists(TOKENS, min_size=2, max_size=4).map(tuple), min_size=1, max_size=5)


def constraint_of(sequences: Sequence[tuple[int, ...]], **fields: object) -> TokenConstraint:
    params = SamplingParams(max_tokens=99, banned_sequences=tuple(sequences), **fields)  # type: ignore[arg-type]
    return TokenConstraint(ParameterSets(params, SIZE, ()), None, None)


def drawn_in(tokens: Sequence[int], sequence: Sequence[int]) -> bool:
    places = range(len(tokens) - len(sequence) + 1)
    return any(tuple(tokens[at : at + len(sequence)]) == tuple(sequence) for at in places)


@given(SEQUENCES, st.lists(TOKENS, max_size=30))
def test_exactly_the_tokens_that_would_complete_one_are_banned(
    sequences: list[tuple[int, ...]], tokens: list[int]
) -> None:
    words = BadWords(endings_of(sequences))
    for token in tokens:
        words.take(token)
    expected = {
        sequence[-1] for sequence in sequences if tuple(tokens[len(tokens) - len(sequence) + 1 :]) == sequence[:-1]
    }
    assert set(ids_in(words.banned(SIZE))) == expected
    if expected:
        assert words.may_ban(0, SIZE)
    assert words.may_ban(1, SIZE)


@given(SEQUENCES, st.data())
def test_what_keeps_to_the_constraint_holds_no_bad_word_unless_nothing_else_is_left(
    sequences: list[tuple[int, ...]], data: st.DataObject
) -> None:
    constraint = constraint_of(sequences)
    tokens: list[int] = []
    for _ in range(20):
        allowed = constraint.allowed()
        candidates = list(range(SIZE)) if allowed is None else ids_in(allowed)
        assert candidates
        token = data.draw(st.sampled_from(candidates))
        tokens.append(token)
        constraint.accept(token)
        banned_all = all(
            any(drawn_in([*tokens[:-1], other], sequence) for sequence in sequences) for other in range(SIZE)
        )
        if banned_all:
            return
    assert not any(drawn_in(tokens, sequence) for sequence in sequences)


def test_a_row_waits_for_masks_only_where_a_token_may_be_banned() -> None:
    constraint = constraint_of([(1, 2)])
    assert not constraint.restricts(0, 0)
    assert constraint.restricts(1, 1), "the token that is in flight may be the one before a banned one"
    constraint.accept(1)
    assert constraint.restricts(0, 0)
    assert ids_in(constraint.allowed() or 0) == [0, 1, 3, 4, 5]
    constraint.accept(3)
    assert constraint.allowed() is None


def test_bad_words_give_way_where_nothing_else_is_left() -> None:
    constraint = constraint_of([(1, 2)], allowed_token_ids=(1, 2))
    constraint.accept(1)
    assert ids_in(constraint.allowed() or 0) == [1]
    constraint = constraint_of([(2, 2)], allowed_token_ids=(2,))
    constraint.accept(2)
    assert ids_in(constraint.allowed() or 0) == [2]


@pytest.mark.parametrize("sequence", [(), (1,)])
def test_shorter_sequences_ban_nothing_here(sequence: tuple[int, ...]) -> None:
    assert not endings_of([sequence] if sequence else [])
