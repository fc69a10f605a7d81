import pytest

from stentor.loadtest.quality.command import ORDER, TEXTS, corpus, windows


def test_the_text_is_all_of_its_parts_and_each_says_where_it_is_from() -> None:
    sources = (TEXTS / "SOURCES.md").read_text()
    assert {path.name for path in TEXTS.glob("*.txt")} == set(ORDER)
    for name in ORDER:
        assert f"`{name}`" in sources
        assert (TEXTS / name).read_text().strip() in corpus()


@pytest.mark.parametrize(
    ("count", "length", "expected"),
    [(10, 4, [4, 4, 2]), (9, 4, [4, 4]), (8, 4, [4, 4]), (3, 8, []), (3, 2, [2])],
)
def test_windows_follow_one_another_and_a_short_rest_is_left_out(count: int, length: int, expected: list[int]) -> None:
    cut = windows(range(count), length)
    assert [len(window) for window in cut] == expected
    assert [token for window in cut for token in window] == list(range(sum(expected)))
