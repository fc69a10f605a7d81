import csv
from pathlib import Path

import pytest

from stentor.loadtest.grid import GridError, append, combine, read_done


def test_every_combination_is_run_and_the_last_parameter_varies_fastest() -> None:
    found = [tuple(each.values()) for each in combine(["block-size=16,32", "kv-dtype=auto,fp8"])]
    assert found == [("16", "auto"), ("16", "fp8"), ("32", "auto"), ("32", "fp8")]


@pytest.mark.parametrize("vary", [["x"], ["=1"], ["x="], ["x=1", "x=2"]])
def test_parameters_that_say_nothing_are_refused(vary: list[str]) -> None:
    with pytest.raises(GridError, match="expected one NAME=VALUE"):
        list(combine(vary))


def test_a_grid_goes_on_where_it_was(tmp_path: Path) -> None:
    output = tmp_path / "a" / "grid.csv"
    first, second = combine(["size=1,2"])
    assert read_done(output, first) == set()
    append(output, first, [{"seconds": 0.5, "name": "x"}, {"seconds": 0.7, "name": "y"}])
    assert read_done(output, first) == {("1",)}
    append(output, second, [{"seconds": 0.9, "name": "z"}])
    with output.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["size"], row["name"]) for row in rows] == [("1", "x"), ("1", "y"), ("2", "z")]


def test_the_file_of_another_grid_is_not_mixed_up(tmp_path: Path) -> None:
    output = tmp_path / "grid.csv"
    append(output, {"size": "1"}, [{"seconds": 1.0}])
    with pytest.raises(GridError, match="other parameters than dtype"):
        read_done(output, {"dtype": "auto"})


def test_a_run_that_failed_leaves_no_row(tmp_path: Path) -> None:
    append(tmp_path / "grid.csv", {"size": "1"}, [])
    assert not (tmp_path / "grid.csv").exists()
