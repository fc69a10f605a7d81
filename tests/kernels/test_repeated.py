"""What operations keep of their calls."""

from collections.abc import Hashable, Sequence
from typing import Any

import pytest
import torch

from stentor.kernels.launching import repeated
from stentor.kernels.launching.repeated import LaunchCache
from stentor.kernels.tuning import Config, overridden, untuned
from stentor.kernels.variants import force_variant


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    monkeypatch.setattr(repeated, "interpreted", lambda: False)


def found(kept: LaunchCache[Any], tensors: Sequence[torch.Tensor], *numbers: Hashable) -> object:
    return kept.find(tensors, *numbers)[1]


def keep(kept: LaunchCache[Any], value: object, tensors: Sequence[torch.Tensor], *numbers: Hashable) -> object:
    return kept.keep(kept.find(tensors, *numbers)[0], value)


def test_it_is_found_for_tensors_laid_out_alike_and_for_the_same_numbers() -> None:
    kept: LaunchCache[str] = LaunchCache()
    x, weight = torch.zeros(4, 8), torch.zeros(8)
    assert keep(kept, "found", (x, weight), 1, "auto") == "found"
    assert found(kept, (torch.ones(4, 8), torch.ones(8)), 1, "auto") == "found"
    others = [
        ((torch.zeros(3, 8), weight), 1),
        ((torch.zeros(8, 4).T, weight), 1),
        ((x.double(), weight), 1),
        ((x, weight, weight), 1),
        ((x, weight), 2),
    ]
    assert [found(kept, tensors, number, "auto") for tensors, number in others] == [None] * len(others)


def test_nothing_is_found_or_kept_where_something_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(4)
    kept: LaunchCache[int] = LaunchCache()
    keep(kept, 1, (x,))
    for forced in (force_variant("reference"), untuned(), overridden("rms_norm", Config.of(ROWS=1))):
        with forced:
            assert found(kept, (x,)) is None
            keep(kept, 2, (x,))
    monkeypatch.setattr(repeated, "interpreted", lambda: True)
    assert found(kept, (x,)) is None
    keep(kept, 2, (x,))
    monkeypatch.setattr(repeated, "interpreted", lambda: False)
    monkeypatch.setattr(torch.Tensor, "is_cuda", False)
    assert found(kept, (x,)) is None
    keep(kept, 2, (x,))
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    assert found(kept, (x,)) == 1


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated, "MOST_KEPT", 8)
    kept: LaunchCache[int] = LaunchCache()
    for number in range(100):
        keep(kept, number, (torch.zeros(1),), number)
        assert found(kept, (torch.zeros(1),), number) == number
    assert len(kept._found) <= 8
