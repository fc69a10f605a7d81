"""How long a process is waited for that may be starved, by clocks that the test sets."""

import pytest

from stentor.engine.processes.silence import Silence


class Clocks:
    def __init__(self) -> None:
        self.now = self.had = 0.0
        self.silence = Silence(lambda: self.had, 4.0, lambda: self.now)

    def pass_by(self, seconds: float, cpu: float) -> float:
        self.now += seconds
        self.had += cpu
        self.silence.look()
        return self.silence.seconds


@pytest.mark.parametrize(
    ("cpu", "counted"),
    [
        pytest.param(0.0, 2.0, id="it hangs"),
        pytest.param(0.0019, 2.0, id="it hangs, but for a tick"),
        pytest.param(0.02, 0.2, id="it is starved, and not waited for without a bound"),
        pytest.param(0.3, 0.6, id="it is starved"),
        pytest.param(1.0, 2.0, id="it has half of a CPU"),
        pytest.param(3.9, 2.0, id="it has two"),
    ],
)
def test_a_look_counts_as_the_cpu_time_that_the_process_had_in_it(cpu: float, counted: float) -> None:
    clocks = Clocks()
    assert clocks.pass_by(2.0, cpu) == pytest.approx(counted)
    assert clocks.pass_by(2.0, cpu) == pytest.approx(2 * counted)
    assert clocks.silence.waited == 4.0


def test_where_the_one_who_looks_stood_still_little_is_counted() -> None:
    assert Clocks().pass_by(90.0, 0.0) == 4.0


def test_a_word_ends_the_silence() -> None:
    clocks = Clocks()
    clocks.pass_by(2.0, 2.0)
    clocks.now, clocks.had = 50.0, 40.0
    clocks.silence.end()
    assert (clocks.silence.seconds, clocks.silence.waited) == (0.0, 0.0)
    assert clocks.pass_by(1.0, 0.0) == 1.0
