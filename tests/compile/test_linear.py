"""What the compiler makes of the 16-bit products of one row, and of many in tiles of one size."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stentor.kernels import linear
from stentor.kernels.launching.dry_run import dry_run
from stentor.kernels.linear import triton_fixed, triton_skinny
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


SKINNY = {
    f"{rows} {config.to_json()}": (rows, config)
    for rows in (16, 32, 64)
    for config in triton_skinny.candidates(rows, 4096)
    if config["SPLITS"] in (1, 8)  # those between are the same loop
}


@pytest.mark.parametrize("case", SKINNY)
def test_few_rows_are_multiplied_in_tensor_cores_at_the_speed_of_memory(case: str) -> None:
    rows, config = SKINNY[case]
    with FakeTensorMode(), dry_run() as compiled, overridden(triton_skinny.OPERATION, config):
        x, weight = (torch.empty(size, 4096, dtype=torch.bfloat16, device="cuda") for size in (rows, 28672))
        linear(x, weight, variant="triton")
    kernel = compiled[0]
    assert kernel.name == "skinny_kernel"
    assert kernel.stack_bytes == 0
    assert kernel.shared_bytes <= 227 * 1024
    assert kernel.warnings == []
    assert kernel.count(r"LDGSTS.*\.128") > 0
    assert kernel.count("HGMMA" if config["BLOCK_N"] >= 64 else "HMMA") > 0
    assert [each.name for each in compiled[1:]] == ["add_parts_kernel"] * (config["SPLITS"] > 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_tiles_of_one_size_are_fetched_ahead_and_multiplied_in_tensor_cores(dtype: torch.dtype) -> None:
    with FakeTensorMode(), dry_run() as compiled:
        x, weight = (torch.empty(rows, 4096, dtype=dtype, device="cuda") for rows in (300, 28672))
        linear(x, weight, invariant=True)
    (kernel,) = compiled
    assert kernel.name == "linear_fixed_kernel"
    assert kernel.stack_bytes == 0
    assert kernel.shared_bytes <= 227 * 1024
    assert kernel.warnings == []
    assert "cp.async.cg.shared.global" in kernel.ptx
    assert (kernel.count("HGMMA") > 0) == (dtype != torch.float32)


def test_any_number_of_rows_compiles_one_kernel_of_one_size() -> None:
    with FakeTensorMode(), dry_run() as compiled:
        weight = torch.empty(4096, 4096, dtype=torch.bfloat16, device="cuda")
        for tokens in (1, 16, 17, 8192):
            linear(torch.empty(tokens, 4096, dtype=torch.bfloat16, device="cuda"), weight, invariant=True)
    assert len({kernel.ptx for kernel in compiled}) == 1
    assert triton_fixed.default(torch.bfloat16) in triton_fixed.candidates()
