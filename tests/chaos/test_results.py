"""Figures come back from their file as they were, and as tables."""

from pathlib import Path

import pytest

from stentor.tests.chaos.bombing import Bombed
from stentor.tests.chaos.exactness import Outcome, Recoveries
from stentor.tests.chaos.fuzzing import Fuzzed
from stentor.tests.chaos.poisoning import Poisoned
from stentor.tests.chaos.results import Chaos, Soaked, load, main, markdown, save
from stentor.tests.chaos.soaking import Soak, Trend

OUTCOME = Outcome(
    seed=1,
    arguments=[],
    streams_at_once=32,
    streams=100,
    tokens=5000,
    survivors=80,
    identical_survivors=79,
    identical=99,
    incomplete=0,
    recoveries=[Recoveries("worker, SIGKILL", 20, 0.51, 1.25)],
    longest_pause=1.3,
    usual_pause=0.05,
    seconds=60.0,
    problems=[],
)
CHAOS = Chaos(
    exact=OUTCOME,
    fuzzed=Fuzzed(
        requests=5000,
        clients_that_left=3000,
        statuses={"200": 1000, "400": 900},
        seconds=90.0,
        resident_before_mib={"server": 75.0},
        resident_after_mib={"server": 76.0},
        problems=[],
    ),
    poisoned=[
        Poisoned(poisons=2, statuses=[500, 500], streams=16, identical=16, worker_deaths=9, seconds=3.4, problems=[])
    ],
    bombed=Bombed(
        bombs=23,
        thrown=190,
        slowest_refusal_s=1.09,
        slowest="a sort in one step",
        streams=8,
        median_before_ms=13.7,
        p99_before_ms=20.0,
        median_ms=15.9,
        p99_ms=24.5,
        worst_ms=80.0,
        problems=[],
    ),
)
TREND = Trend(
    role="server",
    samples=600,
    first_mib=80.0,
    second_mib=80.5,
    last_mib=80.4,
    slope_mib_per_hour=-0.25,
    growth_mib=-0.04,
)
SOAKED = Soaked(
    soak=Soak(
        seconds=600.0,
        warmup_seconds=60.0,
        streams=32,
        requests=6000,
        failed=0,
        output_tokens=360_000,
        tokens_per_second=545.0,
        trends=[TREND],
        leaks=[],
        problems=[],
    )
)


@pytest.mark.parametrize("result", [CHAOS, SOAKED])
def test_what_is_saved_is_read_again(result: Chaos | Soaked, tmp_path: Path) -> None:
    file = tmp_path / "new" / "a.json"
    save(result, file)
    assert load(file) == result


def test_the_tables_say_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(CHAOS, tmp_path / "chaos.json")
    save(SOAKED, tmp_path / "soak.json")
    assert main([str(tmp_path / "chaos.json"), str(tmp_path / "soak.json")]) == 0
    text = capsys.readouterr().out
    assert "| float32, `--batch-invariant` | worker, SIGKILL | 20 | 0.51 s | 1.25 s |" in text
    assert "0 lost or repeated a token; 79 of the 80 are token by token what they are undisturbed" in text
    assert "5000 random requests in 90 s, 3000 of whose clients left early: 0 answers of 500 and above" in text
    assert "2 poisonous among 16 streams: 500, 500 after 3.4 s" in text
    assert "refused within 1.09 s" in text
    assert "10 minutes of 32 streams" in text
    assert "| server | 80.0 MiB | 80.5 | 80.4 | -0.2 MiB/h |" in text


def test_what_has_not_run_has_no_line() -> None:
    assert markdown(Chaos()) == ""
    assert "poisonous" not in markdown(Chaos(exact=OUTCOME))
