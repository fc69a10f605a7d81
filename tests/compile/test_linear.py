"""What the compiler makes of the 16-bit product of one row."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stentor.kernels import linear
from stentor.kernels.dry_run import dry_run
from stentor.kernels.linear.triton_gemv import DEFAULT, OPERATION, candidates
from stentor.kernels.tuning import Config, overridden

pytestmark = pytest.mark.compiles


@pytest.mark.parametrize("config", [DEFAULT, *candidates()], ids=lambda config: str(config.to_json()))
def test_a_weight_is_streamed_sixteen_bytes_a_load(config: Config) -> None:
    with FakeTensorMode(), dry_run() as compiled, overridden(OPERATION, config):
        x, weight = (torch.empty(rows, 4096, dtype=torch.bfloat16, device="cuda") for rows in (1, 28672))
        linear(x, weight, variant="triton")
    (kernel,) = compiled
    assert kernel.stack_bytes == 0
    assert kernel.shared_bytes <= 227 * 1024
    assert "cp.async.cg.shared.global" in kernel.ptx or "evict_first.L2::cache_hint.v4.b32" in kernel.ptx
