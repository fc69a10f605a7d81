import math
import random

import pytest

from stentor.engine.core.scheduler.step_times import StepTimes

ROW, TOKEN = 0.001, 0.0005


def took(decoding: int, prompt_tokens: int) -> float:
    return 0.002 + ROW * decoding + TOKEN * prompt_tokens


def test_nothing_is_known_before_the_first_prompt() -> None:
    times = StepTimes()
    times.learn(4, 0, 0.01)
    times.learn(4, 30, 0.0)
    assert times.prompt_tokens(4, 0.1) == math.inf


def test_as_many_tokens_fit_as_the_time_that_decoding_leaves_has_room_for() -> None:
    times = StepTimes()
    for _ in range(4):
        times.learn(8, 0, took(8, 0))
        times.learn(8, 64, took(8, 64))
    assert times.prompt_tokens(8, 0.06) == pytest.approx((0.06 - took(8, 0)) / TOKEN)


def test_prompts_get_half_of_the_time_where_decoding_alone_takes_too_long() -> None:
    times = StepTimes()
    times.learn(64, 0, took(64, 0))
    times.learn(64, 100, took(64, 100))
    assert times.prompt_tokens(64, 0.05) == pytest.approx(took(64, 0) / TOKEN)


def test_decoding_rows_that_were_not_measured_count_as_the_next_fewer_that_were() -> None:
    times = StepTimes()
    for decoding in (2, 40):
        times.learn(decoding, 0, took(decoding, 0))
    times.learn(0, 400, 0.2)
    assert times.prompt_tokens(1, 0.1) == pytest.approx(200), "no fewer were measured"
    assert times.prompt_tokens(30, 0.1) == pytest.approx((0.1 - took(2, 0)) / TOKEN)


def test_a_first_step_that_took_a_thousand_times_as_long_is_forgotten_with_the_next() -> None:
    times = StepTimes()
    times.learn(0, 100, 50.0)
    times.learn(0, 100, 0.05)
    assert times.prompt_tokens(0, 0.1) == pytest.approx(200)


def test_one_disturbed_step_halves_the_tokens_at_most() -> None:
    times = StepTimes()
    for _ in range(10):
        times.learn(0, 100, 0.05)
    times.learn(0, 100, 50.0)
    assert times.prompt_tokens(0, 0.1) > 100


def test_a_decoding_step_that_seems_slower_than_one_with_a_prompt_leaves_tokens_a_price() -> None:
    times = StepTimes()
    times.learn(4, 0, 1.0)
    times.learn(4, 16, 0.02)
    assert times.token_seconds == pytest.approx(0.25 * 0.02 / 16)


def test_what_is_learned_follows_a_prompt_whose_tokens_cost_more_the_further_it_is() -> None:
    times = StepTimes()
    draw = random.Random(0)
    slope = 1.0
    for _ in range(60):
        slope *= 1.03
        tokens = max(16, int(times.prompt_tokens(0, 0.1))) if times.token_seconds else 512
        seconds = TOKEN * slope * tokens * draw.uniform(0.9, 1.1)
        assert times.token_seconds == 0.0 or seconds < 0.1 * 1.35
        times.learn(0, tokens, seconds)
    assert times.token_seconds == pytest.approx(TOKEN * slope, rel=0.2)
