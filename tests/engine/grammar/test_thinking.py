"""A thinking budget, token by token, against its plainest definition."""

from hypothesis import given
from hypothesis import strategies as st

from stentor.engine.core.grammar.thinking import ThinkingBudget
from stentor.protocols.ipc.actors import Thinking

TOKENS = st.integers(0, 4)
MARKERS = st.lists(st.integers(0, 3), max_size=3)


def _due(thinking: Thinking, tokens: list[int]) -> int | None:
    """The token due after all these, read from the beginning each time."""
    begin, end = thinking.begin, thinking.end
    if not end:
        return None
    inside, left, since = thinking.opened, thinking.budget, 0
    for place in range(len(tokens)):
        text = tokens[since : place + 1]
        if inside:
            left -= 1
            if text[-len(end) :] == end:
                inside, since = False, place + 1
        elif begin and text[-len(begin) :] == begin:
            inside, since = True, place + 1
    if not inside or left > 0:
        return None
    text = tokens[since:]
    held = next(n for n in range(len(end) - 1, -1, -1) if text[len(text) - n :] == end[:n])
    return end[held]


@given(st.integers(0, 5), MARKERS, MARKERS, st.booleans(), st.lists(TOKENS, max_size=20))
def test_what_is_due_follows_from_all_tokens_before(
    budget: int, begin: list[int], end: list[int], opened: bool, tokens: list[int]
) -> None:
    thinking = Thinking(budget, begin, end, opened)
    state = ThinkingBudget(thinking)
    assert state.due == _due(thinking, [])
    for place, token in enumerate(tokens):
        state.take(token)
        assert state.due == _due(thinking, tokens[: place + 1])


@given(st.integers(0, 4), MARKERS, MARKERS, st.booleans(), st.lists(TOKENS, max_size=12), st.integers(0, 3))
def test_nothing_is_due_where_nothing_was_said_to_be_possible(
    budget: int, begin: list[int], end: list[int], opened: bool, tokens: list[int], ahead: int
) -> None:
    state = ThinkingBudget(Thinking(budget, begin, end, opened))
    split = max(0, len(tokens) - ahead)
    for token in tokens[:split]:
        state.take(token)
    possible = state.may_be_due(len(tokens) - split)
    for token in tokens[split:]:
        state.take(token)
    assert possible or state.due is None


def test_forced_to_its_end_a_sequence_thinks_no_longer_than_its_budget() -> None:
    state = ThinkingBudget(Thinking(3, [7], [8, 9], False))
    drawn = [1, 7, 1, 2, 3]
    for token in drawn:
        assert state.due is None
        state.take(token)
    assert state.due == 8
    state.take(8)
    assert state.due == 9
    state.take(9)
    assert state.due is None


def test_an_end_half_drawn_when_the_budget_is_spent_is_completed() -> None:
    state = ThinkingBudget(Thinking(2, [], [8, 9], True))
    state.take(1)
    state.take(8)
    assert state.due == 9


def test_no_budget_at_all_ends_thinking_at_once() -> None:
    state = ThinkingBudget(Thinking(0, [7], [8], True))
    assert state.may_be_due(0)
    assert state.due == 8
