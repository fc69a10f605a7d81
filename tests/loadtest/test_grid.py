import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from stentor.loadtest import series


def test_every_combination_is_run_and_the_last_parameter_varies_fastest() -> None:
    found = [
        tuple(each.values()) for each in series.combine([("block-size", ["16", "32"]), ("kv-dtype", ["auto", "fp8"])])
    ]
    assert found == [("16", "auto"), ("16", "fp8"), ("32", "auto"), ("32", "fp8")]


@pytest.mark.parametrize("vary", ["x", "=1", "x="])
def test_parameters_that_say_nothing_are_refused(vary: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        series.grid(["--vary", vary, "kernels"])
    assert "expected NAME=VALUE" in capsys.readouterr().err


def test_rows_follow_their_parameters_and_a_run_that_failed_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: dict[str, list[dict[str, Any]]] = {
        "1": [{"seconds": 0.5, "name": "x"}, {"seconds": 0.7, "name": "y"}],
        "2": [],
        "3": [{"seconds": 0.9, "name": "z"}],
    }

    def run(benchmark: str, arguments: Sequence[str], combination: Mapping[str, str]) -> list[dict[str, Any]]:
        assert (benchmark, list(arguments)) == ("kernels", ["q1", "--operation", "norm"])
        return rows[combination["size"]]

    monkeypatch.setattr(series, "run", run)
    output = tmp_path / "grid.csv"
    assert series.grid(["--vary", "size=1,2,3", "--csv", str(output), "kernels", "q1", "--operation", "norm"]) == 1
    with output.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [(row["size"], row["name"]) for row in found] == [("1", "x"), ("1", "y"), ("3", "z")]
