from typing import Any

import pytest
import torch

from stentor.engine.worker.device.dry import indexed

NUMBERS = torch.arange(2 * 3 * 4).view(2, 3, 4)


@pytest.mark.parametrize(
    "index",
    [
        1,
        slice(0, 5),
        (slice(None), 1),
        (..., 2),
        (None, ..., None),
        (0, slice(1, None), slice(0, 4, 2)),
        (slice(2, 1),),
        (1, ..., slice(-2, None)),
        torch.tensor([1, 0]),
        (slice(None), torch.tensor([[0, 2]])),
        (0, torch.tensor([2]), slice(1, 3)),
    ],
    ids=str,
)
def test_brackets_in_other_words_choose_the_same(index: Any) -> None:
    assert torch.equal(indexed(NUMBERS, index), NUMBERS[index])
