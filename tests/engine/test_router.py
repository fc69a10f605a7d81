"""Which of several engines of one model gets a request."""

from stentor.engine.client import replicas
from stentor.engine.client.replicas import Router

PROMPT = list(range(200))
IDLE = {0: 0, 1: 0, 2: 0}


def test_idle_engines_take_turns_and_the_idlest_goes_first() -> None:
    router = Router(3)
    assert sorted(router.choose([number] * 64, "", IDLE) for number in range(3)) == [0, 1, 2]
    assert router.choose([7] * 64, "", {0: 2, 1: 1, 2: 2}) == 1


def test_a_prompt_goes_where_most_of_it_has_been_computed_unless_that_engine_is_much_busier() -> None:
    router = Router(3)
    first = router.choose(PROMPT, "", IDLE)
    assert router.choose([*PROMPT[:128], *range(500, 600)], "", IDLE) == first
    assert router.choose(PROMPT, "", IDLE | {first: 4}) == first
    other = router.choose(PROMPT, "", IDLE | {first: 5})
    assert other != first
    assert router.choose(PROMPT, "", IDLE) == other, "where it was sent last"
    longer = [*PROMPT, *range(1000, 1100)]
    idlest = next(engine for engine in IDLE if engine != other)
    assert router.choose(longer, "", {each: 5 * (each != idlest) for each in IDLE}) == idlest
    assert router.choose(longer, "", IDLE) == idlest


def test_prompts_of_other_salts_and_short_ones_share_no_engine_by_prefix() -> None:
    router = Router(2)
    first = router.choose(PROMPT, ("a", None), {0: 0, 1: 0})
    assert router.choose(PROMPT, ("b", None), {0: 0, 1: 0}) != first
    chosen = {router.choose([1, 2, 3], "", {0: 0, 1: 0}) for _ in range(2)}
    assert chosen == {0, 1}


def test_an_engine_that_cannot_run_gets_nothing_and_what_it_had_goes_elsewhere() -> None:
    router = Router(2)
    first = router.choose(PROMPT, "", {0: 0, 1: 0})
    other = 1 - first
    assert router.choose(PROMPT, "", {other: 9}) == other
    router.forget()
    assert {router.choose(PROMPT, "", {0: 0, 1: 0}), router.choose(PROMPT[64:], "", {0: 0, 1: 0})} == {0, 1}


def test_what_is_remembered_is_bounded() -> None:
    router = Router(2)
    for number in range(300):
        router.choose([number] * 64 * 256, "", {0: 0, 1: 0})
    assert len(router._given) == replicas._MOST_PIECES


def test_a_session_stays_with_its_engine_however_busy_while_that_one_can_run() -> None:
    router = Router(3)
    first = router.choose(PROMPT, "", IDLE, "session")
    other = next(engine for engine in IDLE if engine != first)
    assert router.choose([9] * 64, "", IDLE | {first: 50}, "session") == first, "with another prompt too"
    assert router.choose(PROMPT, "", {other: 9}, "session") == other
    assert router.choose([8] * 64, "", IDLE, "session") == other, "where it was last"
    assert router.choose([7] * 64, "", IDLE | {other: 1}, "another") != other
    router.forget()
    assert router.choose([8] * 64, "", IDLE | {other: 1}, "session") != other


def test_as_many_sessions_are_remembered_as_may_be() -> None:
    router = Router(2)
    first = router.choose([], "", {0: 0, 1: 0}, "first")
    for number in range(replicas._MOST_SESSIONS):
        router.choose([], "", {0: 0, 1: 0}, number)
    assert len(router._sessions) == replicas._MOST_SESSIONS
    assert router.choose([], "", {first: 1, 1 - first: 0}, "first") == 1 - first
