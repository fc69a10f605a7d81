"""How the work of a decode step is divided: each tile of keys once, long rows among many programs."""

import pytest
import torch

from stentor.kernels.attention import reference
from stentor.kernels.attention.decode_kernels import split_kernel
from stentor.kernels.attention.triton_decode import padded_rows
from stentor.kernels.launching.launch import launch
from stentor.kernels.tuning import Config
from stentor.tests.kernels.gpu import DEVICE


def planned(lengths: list[int], target: int, *, query_len: int = 2, window: int = 0) -> list[list[int]]:
    """The items of a plan that are somebody's, in tiles of 16 keys and parts of 48 or more."""
    of_rows = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    items = target + len(lengths)
    plan = torch.full((items + 1, 6), -2, dtype=torch.int32, device=DEVICE)
    config = Config.of(TILE=16, BLOCK=8)
    constants = {"MIN_TILES": 3, "ROWS": padded_rows(len(lengths)), "QUERY_LEN": query_len, "WINDOWED": window != 0}
    numbers = len(lengths), items, target, window
    launch(split_kernel, (-(-items // 8),), of_rows, None, plan, *numbers, config=config, **constants)
    *found, behind = plan.tolist()
    assert behind == [-2] * 6
    return [item for item in found if item[0] != -1]


@pytest.mark.triton
@pytest.mark.parametrize("window", [0, 100, -64])
@pytest.mark.parametrize("target", [1, 7, 40])
@pytest.mark.parametrize("lengths", [[5000], [0, 0, 0], [2, 5000, 16, 17, 0, 640, 2], [900] * 20])
def test_a_plan_has_each_tile_that_a_row_sees_once_and_gives_long_rows_most(
    lengths: list[int], target: int, window: int
) -> None:
    items = planned(lengths, target, window=window)
    tiles = []
    for row, length in enumerate(lengths):
        own = [item for item in items if item[0] == row]
        first = max(0, int(reference.first_seen(length - 2, window))) // 16
        assert [tile for item in own for tile in range(item[2], item[3])] == list(range(first, -(-length // 16)))
        assert {(item[1], item[5]) for item in own} == {(length, len(own))}
        tiles.append(-(-length // 16) - first)
    fair = max(3, -(-sum(tiles) // target))
    assert all(end - begin <= fair for _, _, begin, end, _, _ in items)


@pytest.mark.triton
def test_a_plan_says_where_the_items_of_a_row_begin() -> None:
    lengths = [0, 5000, 3, 700]
    of_rows = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    plan = torch.empty((24, 6), dtype=torch.int32, device=DEVICE)
    constants = {"MIN_TILES": 1, "ROWS": padded_rows(4), "QUERY_LEN": 1, "WINDOWED": False}
    launch(split_kernel, (3,), of_rows, None, plan, 4, 24, 20, 0, config=Config.of(TILE=16, BLOCK=8), **constants)
    found = plan.tolist()
    for at, (row, *_, first, used) in enumerate(found):
        if row >= 0:
            assert first <= at < first + used
            assert found[first][0] == row


def test_few_sizes_of_batches_are_compiled_for() -> None:
    padded = [padded_rows(rows) for rows in range(1, 1025)]
    assert all(size >= rows for rows, size in enumerate(padded, 1))
    assert sorted(set(padded)) == [1, 16, 64, 256, 1024]
