"""Launches that overlap, on a GPU; what is compiled for them is looked at in ``tests/compile``."""

import pytest
import torch

from stentor.kernels.tuning import Config, overridden
from stentor.tests.kernels.gpu import DEVICE
from stentor.tests.kernels.helpers import assert_same_bits

pytestmark = [pytest.mark.gpu, pytest.mark.triton]


def test_launches_that_overlap_give_what_they_give_apart() -> None:
    from stentor.kernels.launching.dependent import APART, OPERATION, TOGETHER, tunables  # late: it imports Triton

    def result(config: Config) -> torch.Tensor:
        torch.manual_seed(0)
        layers = tunables()[0].workload(torch.device(DEVICE))
        with overridden(OPERATION, config):
            found = [layers() for _ in range(20)][-1]
        assert isinstance(found, torch.Tensor)
        return found

    assert_same_bits(result(TOGETHER), result(APART))
