"""How a run is shown."""

import io

from stentor.loadtest.serving.meter import Meter, ProgressLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _meter(tokens: int = 0, completed: int = 0, stage: str = "") -> Meter:
    meter = Meter()
    meter.tokens, meter.completed, meter.stage = tokens, completed, stage
    return meter


def test_in_a_log_lines_come_at_their_times_only() -> None:
    out = io.StringIO()
    line = ProgressLine(out, requests=10)
    for quarter in range(41):
        line.show(_meter(10 * quarter, quarter, "rate=2"), quarter / 4)
    line.clear()
    first, second = out.getvalue().splitlines()
    assert first.startswith("   5.0 s  rate=2  20/10 done  0 running  40 tokens/s  TTFT -  ITL -  0 failed")
    assert "10.0 s" in second
    assert "40 tokens/s" in second, "the rate since the line before"


def test_a_run_that_stood_still_is_told_once() -> None:
    out = io.StringIO()
    line = ProgressLine(out)
    for seconds in (17.0, 19.0, 20.5):
        line.show(_meter(), seconds)
    assert [text.split(" s ")[0].strip() for text in out.getvalue().splitlines()] == ["17.0", "20.5"]


def test_on_a_terminal_one_line_is_written_over_and_cleared_in_the_end() -> None:
    out = Terminal()
    line = ProgressLine(out, requests=4, seconds=60.0)
    line.show(_meter(100), 0.5)
    line.show(_meter(300), 1.0)
    line.clear()
    _, first, second, last = out.getvalue().split("\r\x1b[K")
    assert "0.5/60 s  0/4 done" in first
    assert "400 tokens/s" in second
    assert last == ""
    assert "\n" not in out.getvalue()


def test_latencies_are_of_what_came_recently() -> None:
    meter = Meter()
    meter.gaps.extend([9.0] * 5000)
    meter.gaps.extend(gap / 1e3 for gap in range(1, 2049))
    out = Terminal()
    ProgressLine(out).show(meter, 1.0)
    assert "TTFT -  ITL p50 1,024.0 p99 2,028.0 ms" in out.getvalue()
