import pytest

from stentor.loadtest.report.figures import show_value
from stentor.loadtest.sweeping.runs import Value, parse_axis
from stentor.loadtest.tool import UsageError


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2,4", [1.0, 2.0, 4.0]),
        ("0.5", [0.5]),
        ("1:16:x2", [1.0, 2.0, 4.0, 8.0, 16.0]),
        ("1:20:x2", [1.0, 2.0, 4.0, 8.0, 16.0]),
        ("10:50:20", [10.0, 30.0, 50.0]),
        ("0:1:0.1", [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]),
        ("chat, completions", ["chat", "completions"]),
        ("128,lognormal:400:0.8", ["128", "lognormal:400:0.8"]),
        ("lognormal:400:0.8", ["lognormal:400:0.8"]),
    ],
)
def test_values_come_as_they_are_written(text: str, values: list[Value]) -> None:
    assert parse_axis("rate", text) == ("rate", values)


@pytest.mark.parametrize(
    "text", ["", "1,,2", "1,1", "a,a", "1:16:x1", "16:1:x2", "0:8:x2", "1:8:0", "1:8:-1", "1:8:xx", "1:1000000:1"]
)
def test_values_that_say_nothing_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--axis values"):
        parse_axis("rate", text)


def test_the_name_may_be_written_as_an_option() -> None:
    assert parse_axis("--max_concurrency", "1")[0] == "max-concurrency"
    with pytest.raises(UsageError, match="expected the name of an option"):
        parse_axis("a b", "1")


def test_numbers_are_shown_as_an_option_takes_them() -> None:
    assert [show_value(value) for value in (8.0, 0.25, "x", 1e6)] == ["8", "0.25", "x", "1000000"]
