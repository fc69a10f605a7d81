import pytest

from stentor.loadtest.report.scale import Scale, fit, linear_ticks, log_ticks, show


def test_a_value_lies_at_its_share_of_the_axis() -> None:
    scale = Scale(0, 10, start=50, end=250)
    assert [scale(0), scale(5), scale(10)] == [50, 150, 250]
    upwards = Scale(0, 10, start=200, end=0)
    assert upwards(2.5) == 150


def test_a_decade_takes_the_same_room_everywhere_on_a_logarithmic_axis() -> None:
    scale = Scale(1, 1000, start=0, end=300, log=True)
    assert [round(scale(value), 9) for value in (1, 10, 100, 1000)] == [0, 100, 200, 300]
    assert scale(0) == 0


@pytest.mark.parametrize("log", [False, True])
def test_a_pixel_leads_back_to_its_value(log: bool) -> None:
    scale = Scale(2, 80, start=300, end=20, log=log)
    for value in (2, 7.5, 80):
        assert scale.inverse(scale(value)) == pytest.approx(value)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 97, [0, 20, 40, 60, 80]),
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (-3, 3, [-2, 0, 2]),
        (990, 1010, [990, 995, 1000]),
    ],
)
def test_linear_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    found = linear_ticks(low, high, 5)
    assert found[: len(expected)] == pytest.approx(expected)
    assert all(low <= tick <= high + 1e-9 for tick in found)


def test_logarithmic_ticks_thin_out_as_the_axis_grows() -> None:
    assert log_ticks(1, 100, 6) == [1, 2, 5, 10, 20, 50, 100]
    assert log_ticks(1, 1000, 6) == [1, 3, 10, 30, 100, 300, 1000]
    assert log_ticks(1, 1e6, 6) == [10.0**power for power in range(7)]
    assert len(log_ticks(1e-3, 1e12, 6)) <= 7


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(("low", "high"), [(3, 97), (0.013, 0.8), (5, 5), (1, 2.5e7)])
def test_a_fitted_axis_holds_the_data_and_ends_on_round_values(low: float, high: float, log: bool) -> None:
    scale = fit(low, high, 0, 100, log=log)
    assert scale.low <= low * (1 + 1e-9)
    assert scale.high >= high * (1 - 1e-9)
    for end in (scale.low, scale.high):
        assert float(f"{end:.1e}") == pytest.approx(end)


def test_an_axis_of_zeros_alone_can_be_drawn() -> None:
    for log in (False, True):
        scale = fit(0, 0, 0, 100, log=log)
        assert 0 <= scale(0) <= 100


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (0.05, "0.05"),
        (1.5, "1.5"),
        (250, "250"),
        (2000, "2,000"),
        (15e4, "150k"),
        (2e6, "2M"),
        (1e-5, "1e-05"),
    ],
)
def test_numbers_beside_ticks_are_short(value: float, shown: str) -> None:
    assert show(value) == shown
