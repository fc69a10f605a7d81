"""How a run is shown."""

import io
from typing import Any

from rich.console import Console

from stentor.loadtest.serving.live import Picture, sparkline
from stentor.loadtest.serving.meter import Meter, Snapshot
from stentor.loadtest.serving.view import LineView, LiveView, token_rate


def _snapshot(seconds: float, tokens: int = 0, **options: Any) -> Snapshot:
    meter = Meter()
    meter.tokens = tokens
    for name, value in options.items():
        setattr(meter, name, value)
    return meter.snapshot(seconds, 10, None)


def test_a_sparkline_is_as_high_as_its_greatest_value_and_shows_the_last() -> None:
    assert sparkline([0, 1, 2, 4], 10) == "▁▃▅█" or sparkline([0, 7], 10) == "▁█"
    assert sparkline(range(8), 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([9, 1, 1], 2) == "██"
    assert sparkline([0, 0], 5) == "▁▁"
    assert sparkline([], 5) == ""


def test_the_rate_is_that_between_two_looks() -> None:
    assert token_rate(_snapshot(1, 100), _snapshot(3, 500)) == 200
    assert token_rate(None, _snapshot(2, 500)) == 250
    assert token_rate(None, _snapshot(0, 0)) == 0


def test_percentiles_are_of_what_came_recently() -> None:
    meter = Meter()
    for _ in range(5000):
        meter.gap(9.0)
    for gap in range(1, 2049):
        meter.gap(gap / 1e3)
    seen = meter.snapshot(1, None, None)
    assert seen.itl_p50 is not None
    assert seen.itl_p99 is not None
    assert abs(seen.itl_p50 - 1024) < 2
    assert abs(seen.itl_p99 - 2028) < 2
    assert seen.ttft_p50 is None


def test_lines_come_at_their_times_only() -> None:
    out = io.StringIO()
    with LineView(out, every=5.0) as view:
        for quarter in range(41):
            view.show(_snapshot(quarter / 4, 10 * quarter, completed=quarter, stage="rate=2"))
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert "5.0 s  rate=2  20/10 done" in lines[0]
    assert "40 tokens/s" in lines[1]


def test_the_picture_fits_its_width_and_shows_what_matters() -> None:
    picture = Picture()
    for quarter in range(1, 400):
        picture.take(_snapshot(quarter / 4, 25 * quarter, in_flight=3, errors=2, completed=5, stage="rate=2"))
    console = Console(width=60, file=io.StringIO(), record=True)
    console.print(picture.render(60))
    text = console.export_text()
    for part in ("7/10 requests, 100 s", "rate=2", "100  mean 100, peak 100", "█"):
        assert part in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 60


def test_a_view_that_died_does_not_hold_up_the_run() -> None:
    view = LiveView()
    view._child.kill()
    view._child.wait()
    with view:
        for second in range(3):
            view.show(_snapshot(second))
