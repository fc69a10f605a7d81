"""Inner units that are stored in blocks are given to workers in whole blocks."""

from itertools import accumulate

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.tensor_parallel.cuts import Rank


def parts(count: int, block: int, size: int) -> list[tuple[int, int]]:
    return [Rank(number, size).blocks(count, block, "inner units") for number in range(size)]


@pytest.mark.parametrize(
    ("count", "block", "size", "counts"),
    [
        (2880, 32, 2, [1440, 1440]),
        (2880, 32, 8, [384, 352, 352, 352, 384, 352, 352, 352]),
        (1536, 128, 8, [256, 128, 256, 128, 256, 128, 256, 128]),
        (100, 32, 3, [64, 32, 4]),
        (96, 1, 4, [24, 24, 24, 24]),
    ],
)
def test_each_worker_has_whole_blocks_and_none_more_than_the_first(
    count: int, block: int, size: int, counts: list[int]
) -> None:
    found = parts(count, block, size)
    assert [own for _, own in found] == counts
    assert [first for first, _ in found] == [0, *accumulate(counts[:-1])]


@pytest.mark.parametrize(
    ("count", "block", "said"), [(98, 1, "98 inner units do"), (96, 32, "96 inner units in blocks of 32 do")]
)
def test_too_few_blocks_and_single_units_that_do_not_divide_are_refused(count: int, block: int, said: str) -> None:
    with pytest.raises(ConfigError, match=f"{said} not divide among 4 workers"):
        parts(count, block, 4)
