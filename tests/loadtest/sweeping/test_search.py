import pytest

from stentor.loadtest.sweeping.runs import Search


def _search(limit: float, start: float) -> tuple[Search, list[float]]:
    search, tried = Search(start), list[float]()
    while (rate := search.next_rate()) is not None:
        tried.append(rate)
        assert len(tried) < 60
        search.tell(rate, rate <= limit)
    return search, tried


@pytest.mark.parametrize("limit", [0.7, 0.9, 1.0, 6.3, 17.5, 900.0])
@pytest.mark.parametrize("start", [0.5, 1.0, 40.0])
def test_the_limit_is_enclosed_as_nearly_as_asked(limit: float, start: float) -> None:
    search, tried = _search(limit, start)
    assert search.low is not None
    assert search.high is not None
    assert search.low <= limit < search.high <= search.low * 1.06
    assert len(set(tried)) == len(tried)


def test_rates_double_and_then_halve_the_gap() -> None:
    _, tried = _search(5.0, 1.0)
    assert tried[:5] == [1.0, 2.0, 4.0, 8.0, 5.66]


def test_a_search_takes_few_runs() -> None:
    assert len(_search(100.0, 1.0)[1]) <= 13


def test_a_server_without_a_limit_ends_the_search_too() -> None:
    search, tried = _search(float("inf"), 1.0)
    assert search.low == tried[-1] == pytest.approx(4096, rel=0.01)
    assert search.high is None


def test_a_server_that_holds_nothing_ends_the_search_too() -> None:
    search, tried = _search(0.0, 1.0)
    assert search.low is None
    assert search.high == tried[-1]
    assert 1 / 64 <= tried[-1] <= 1 / 16


def test_a_lucky_run_above_the_limit_is_not_believed() -> None:
    search = Search(1.0)
    search.tell(1.0, True)
    search.tell(4.0, False)
    search.tell(8.0, True)
    assert (search.low, search.high) == (1.0, 4.0)
    search.tell(0.5, False)
    assert (search.low, search.high) == (1.0, 4.0)
