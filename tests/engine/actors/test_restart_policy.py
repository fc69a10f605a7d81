"""The one count of failures in a row, by a clock that the tests move by hand."""

import math

import pytest

from stentor.engine.processes.restart_policy import RestartPolicy, Restarts


def lives(policy: RestartPolicy, *events: float | str) -> list[float | None]:
    """What each failure of a child is answered: a number is a life of so many seconds that ends with one, a name is
    what is said of the life at hand. Delays are waited for."""
    now = 0.0
    restarts = Restarts(policy, lambda: now)
    answers = []
    for event in events:
        if isinstance(event, str):
            getattr(restarts, event)()
            continue
        now += event
        answers.append(delay := restarts.failed())
        now += delay or 0.0
    assert restarts.total == sum(each is not None for each in answers)
    return answers


@pytest.mark.parametrize(
    ("policy", "answers"),
    [
        (RestartPolicy(math.inf), [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]),
        (RestartPolicy(math.inf, first_delay=1.0, max_delay=3.0), [0.0, 1.0, 2.0, 3.0, 3.0]),
        (RestartPolicy(math.inf, max_delay=0.0), [0.0, 0.0, 0.0]),
    ],
)
def test_the_next_start_is_at_once_then_after_delays_that_double_up_to_a_limit(
    policy: RestartPolicy, answers: list[float]
) -> None:
    assert lives(policy, *[0.0] * len(answers)) == pytest.approx(answers)


def test_delays_stay_finite_however_many_failures() -> None:
    assert lives(RestartPolicy(math.inf), *[0.0] * 5000)[-1] == 10.0


@pytest.mark.parametrize(
    ("policy", "answers"),
    [
        (RestartPolicy(1), [None]),
        (RestartPolicy(2), [0.0, None]),
        (RestartPolicy(4), [0.0, 0.1, 0.2, None]),
    ],
)
def test_too_many_failures_in_a_row_are_followed_by_no_start(
    policy: RestartPolicy, answers: list[float | None]
) -> None:
    assert lives(policy, *[0.0] * len(answers)) == answers


@pytest.mark.parametrize(
    ("policy", "events", "answers"),
    [
        (RestartPolicy(math.inf, max_first_failures=2), (0, 0), [0.0, None]),
        (RestartPolicy(math.inf, max_first_failures=2), (0, "ready", 0, 0, 0), [0.0, 0.1, 0.2, 0.4]),
        (RestartPolicy(3, max_first_failures=1), ("ready", 0, 0, 0), [0.0, 0.1, None]),
        (RestartPolicy(3, max_first_failures=1), (0,), [None]),
        (RestartPolicy(2, max_first_failures=5), (0, 0), [0.0, None]),
    ],
)
def test_a_child_that_was_never_ready_has_a_bound_of_its_own(
    policy: RestartPolicy, events: tuple[float | str, ...], answers: list[float | None]
) -> None:
    assert lives(policy, *events) == answers


@pytest.mark.parametrize(
    ("events", "answers"),
    [
        ((0, 0, "progressed", 0, 0, 0), [0.0, 0.1, 0.0, 0.1, None]),
        (("progressed", 0, 0, 0), [0.0, 0.1, None]),
        ((0, "progressed", "progressed", 0), [0.0, 0.0]),
    ],
)
def test_progress_ends_a_row(events: tuple[float | str, ...], answers: list[float | None]) -> None:
    assert lives(RestartPolicy(3), *events) == answers


@pytest.mark.parametrize(
    ("events", "answers"),
    [
        ((0, 0, 60, 0), [0.0, 0.1, 0.0, 0.1]),
        ((0, 0, 59), [0.0, 0.1, None]),
        ((60, 60, 60, 60), [0.0] * 4),
    ],
)
def test_a_long_life_ends_a_row_and_its_own_failure_begins_the_next(
    events: tuple[float | str, ...], answers: list[float | None]
) -> None:
    assert lives(RestartPolicy(3, healthy_after=60.0), *events) == answers


def test_kills_of_an_idle_child_minutes_apart_are_no_row() -> None:
    assert lives(RestartPolicy(5), *[360] * 12) == [0.0] * 12


def test_getting_ready_is_no_part_of_a_life() -> None:
    now = 0.0
    restarts = Restarts(RestartPolicy(3, healthy_after=60.0), lambda: now)
    answers = []
    for _ in range(3):
        now += 100.0
        restarts.ready()
        now += 1.0
        answers.append(delay := restarts.failed())
        now += delay or 0.0
    assert answers == [0.0, 0.1, None], "it dies of its first second each time"


def test_a_delay_is_no_part_of_a_life() -> None:
    policy = RestartPolicy(4, first_delay=50.0, max_delay=50.0, healthy_after=60.0)
    assert lives(policy, 0, 0, 20, 20) == [0.0, 50.0, 50.0, None]


def test_a_long_life_allows_no_start_where_there_is_to_be_none() -> None:
    assert lives(RestartPolicy(1, healthy_after=60.0), 61) == [None]


@pytest.mark.parametrize(
    ("events", "answers"),
    [
        (("excuse", 0, "excuse", 0, "excuse", 0, 0, 0, 0), [0.0, 0.0, 0.0, 0.0, 0.1, None]),
        ((0, 0, "excuse", 0, 0), [0.0, 0.1, 0.1, None]),
        ((0, 0, "excuse", "excuse", 0, 0), [0.0, 0.1, 0.1, None]),
        ((0, 0, "progressed", "excuse", 0, 0, 0, 0), [0.0, 0.1, 0.0, 0.0, 0.1, None]),
    ],
)
def test_an_excuse_takes_one_failure_out_of_the_row(
    events: tuple[float | str, ...], answers: list[float | None]
) -> None:
    assert lives(RestartPolicy(3), *events) == answers


def test_a_final_failure_counts_and_is_followed_by_no_start() -> None:
    restarts = Restarts(RestartPolicy(math.inf), lambda: 0.0)
    restarts.failed()
    assert restarts.failed(final=True) is None
    assert (restarts.in_a_row, restarts.total) == (2, 1)
