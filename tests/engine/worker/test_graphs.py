"""The dispatcher of decode graphs: sizes, padding, the order of captures, and the time they may take."""

import math
from collections.abc import Callable

import pytest

from stentor.engine.worker.graphs import Body, DecodeGraphs, StallBudget, default_sizes
from stentor.tests.engine.worker.fake_device import FakeDevice, ManualClock


def test_sizes_are_close_enough_that_little_is_padding() -> None:
    assert default_sizes(1) == [1]
    assert default_sizes(3) == [1, 2, 3]
    assert default_sizes(16) == [1, 2, 4, 8, 16]
    sizes = default_sizes(300)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == 300
    for rows in range(1, 301):
        size = next(size for size in sizes if size >= rows)
        assert size - rows < max(2, min(32, rows))


class Captures:
    """The dispatcher with a clock by hand; ``took`` is what each piece of work takes."""

    def __init__(self, sizes: tuple[int, ...], share: float = 0.05, took: float = 0.5) -> None:
        self.clock = ManualClock()
        self.took = took
        self.log: list[str] = []
        self.device = FakeDevice()
        self.graphs = DecodeGraphs(
            self.device, sizes, self._warm, self._bodies, StallBudget(share, self.clock), self.clock
        )

    def _warm(self, size: int) -> None:
        self.log.append(f"warm {size}")
        self.clock.now += self.took

    def _bodies(self, size: int) -> tuple[Body, Body]:
        self.log.append(f"capture {size}")
        self.clock.now += self.took
        body: Callable[[], None] = lambda: None  # noqa: E731
        return body, body


def test_the_largest_size_comes_first_and_each_is_run_before_it_is_captured() -> None:
    captures = Captures((2, 8, 4))
    seconds = []
    while (wait := captures.graphs.advance(busy=False)) is not None:
        seconds.append(wait)
    assert captures.log == ["warm 8", "capture 8", "warm 4", "capture 4", "warm 2", "capture 2"]
    assert seconds == [0.0] * 5, "who has nothing else to do need not wait"
    assert captures.graphs.captured == [2, 4, 8]
    assert captures.graphs.advance(busy=True) is None


def test_a_step_takes_the_smallest_captured_size_that_holds_it() -> None:
    captures = Captures((2, 8, 4))
    graphs = captures.graphs
    assert graphs.size_for(1) is None
    graphs.advance(busy=False)
    assert graphs.size_for(1) is None, "it was run, not captured"
    graphs.advance(busy=False)
    assert [graphs.size_for(rows) for rows in (1, 3, 8, 9)] == [8, 8, 8, None]
    while graphs.advance(busy=False) is not None:
        pass
    assert [graphs.size_for(rows) for rows in (1, 2, 3, 4, 5, 8, 9)] == [2, 2, 4, 4, 8, 8, None]


def test_a_busy_worker_gives_captures_only_their_share_of_time() -> None:
    captures = Captures(tuple(range(1, 9)), share=0.05, took=0.4)
    begun = captures.clock.now
    worked = 0
    while (seconds := captures.graphs.advance(busy=True)) is not None:
        if len(captures.log) > worked:
            worked = len(captures.log)
            spent = worked * captures.took
            assert spent <= 0.05 * (captures.clock.now - begun) + captures.took + 1e-9
        captures.clock.now += min(max(seconds, 0.001), 0.25)
    assert len(captures.log) == 16
    elapsed = captures.clock.now - begun
    assert elapsed == pytest.approx(15 * 0.4 / 0.05, rel=0.1), "nor much less than it"


def test_nothing_is_done_before_it_is_paid_for() -> None:
    captures = Captures((4, 8), share=0.1, took=0.3)
    wait = captures.graphs.advance(busy=True)
    assert wait == pytest.approx(2.7)
    captures.clock.now += 2.6
    assert captures.graphs.advance(busy=True) == pytest.approx(0.1)
    assert captures.log == ["warm 8"]
    captures.clock.now += 0.11
    captures.graphs.advance(busy=True)
    assert captures.log == ["warm 8", "capture 8"]


def test_without_a_share_only_an_idle_worker_captures() -> None:
    captures = Captures((4,), share=0.0)
    assert captures.graphs.advance(busy=True) == math.inf
    assert captures.log == []
    assert captures.graphs.advance(busy=False) == 0.0
    assert captures.log == ["warm 4"]


def test_a_capture_that_fails_ends_them_and_keeps_what_there_is(caplog: pytest.LogCaptureFixture) -> None:
    captures = Captures((2, 4))
    captures.graphs.advance(busy=False)
    captures.graphs.advance(busy=False)
    captures.device.capture_error = RuntimeError("out of memory")
    assert captures.graphs.advance(busy=False) == 0.0
    assert captures.graphs.advance(busy=False) is None
    assert captures.graphs.captured == [4]
    assert captures.graphs.size_for(1) == 4
    assert "decode steps of up to 2 rows run without graphs" in caplog.text
