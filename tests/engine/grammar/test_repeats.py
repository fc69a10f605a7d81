"""Sequences that may not come again, compared with a plain definition."""

from hypothesis import given
from hypothesis import strategies as st

from stentor.engine.core.grammar.constraint import ParameterSets, TokenConstraint
from stentor.engine.core.grammar.repeats import RepeatedSequences
from stentor.engine.core.grammar.token_sets import ids_in
from stentor.protocols.ipc.sampling import NoRepeat, SamplingParams

SIZE = 4
RULES = st.builds(
    NoRepeat, st.integers(2, 5), st.integers(1, 12), st.lists(st.integers(0, SIZE - 1), max_size=1).map(tuple)
)
TOKENS = st.lists(st.integers(0, SIZE - 1), max_size=40)


def expected(rule: NoRepeat, output: list[int]) -> set[int]:
    """vLLM's definition, over the whole output."""
    if len(output) < rule.size:
        return set()
    before = output[len(output) - rule.size + 1 :]
    starts = range(max(0, len(output) - rule.window), len(output) - rule.size + 1)
    found = {output[at + rule.size - 1] for at in starts if output[at : at + rule.size - 1] == before}
    return found - set(rule.exempt)


@given(RULES, TOKENS)
def test_exactly_the_tokens_that_would_repeat_a_sequence_in_the_window_are_banned(
    rule: NoRepeat, output: list[int]
) -> None:
    tracked = RepeatedSequences(rule)
    before = [tracked.copy()]
    for place, token in enumerate(output, 1):
        tracked.take(token)
        banned = set(ids_in(tracked.banned(SIZE)))
        assert banned == expected(rule, output[:place])
        before.append(tracked.copy())
        if banned:
            assert all(before[place - ahead].may_ban(ahead, SIZE) for ahead in range(min(place, 5) + 1))


def test_a_row_waits_for_masks_only_where_a_sequence_may_come_again() -> None:
    params = SamplingParams(max_tokens=9, no_repeat=NoRepeat(3, 100))
    constraint = TokenConstraint(ParameterSets(params, SIZE, ()), None, None)
    for token in (0, 1, 2):
        constraint.accept(token)
        assert not constraint.restricts(0, 1)
    constraint.accept(0)
    assert constraint.restricts(1, 1), "a 1 may follow, and then a 2 would repeat"
    constraint.accept(1)
    assert ids_in(constraint.allowed() or 0) == [0, 1, 3]
    assert ids_in(constraint.copy().allowed() or 0) == [0, 1, 3]


def test_a_ban_gives_way_where_nothing_else_is_left() -> None:
    params = SamplingParams(max_tokens=9, no_repeat=NoRepeat(2, 100), allowed_token_ids=(3,))
    constraint = TokenConstraint(ParameterSets(params, SIZE, ()), None, None)
    for _ in range(3):
        constraint.accept(3)
    assert ids_in(constraint.allowed() or 0) == [3]
