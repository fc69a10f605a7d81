"""What the compiler makes of products of few rows with a norm before and a gate or a sum after."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stentor.kernels import ActivationKind, add_linear_, normed_linear
from stentor.kernels.launching.dry_run import CompiledKernel, dry_run
from stentor.kernels.linear import triton_skinny as plain
from stentor.kernels.linear_normed import triton_skinny
from stentor.kernels.linear_normed.triton_row import DEFAULT, OPERATION
from stentor.kernels.linear_normed.tunables import SHAPES, candidates, skinny_candidates
from stentor.kernels.tuning import Config, overridden

pytestmark = pytest.mark.compiles


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda")


def compiled(config: Config, *, gated: bool, width: int = 4096) -> CompiledKernel:
    with FakeTensorMode(), dry_run() as kernels, overridden(OPERATION, config):
        x, residual, norm, weight = empty(1, width), empty(1, width), empty(width), empty(28672, width)
        kind: ActivationKind | None = "silu" if gated else None
        normed_linear(x, norm, weight, 1e-5, residual=residual, kind=kind, variant="triton")
    (kernel,) = kernels
    return kernel


@pytest.mark.parametrize("width", sorted({width for _, width, _ in SHAPES}))
@pytest.mark.parametrize("gated", [False, True])
def test_a_weight_is_streamed_sixteen_bytes_a_load_and_nothing_is_spilled(gated: bool, width: int) -> None:
    offered = candidates(width, gated=gated)
    for config in (DEFAULT, max(offered, key=size), min(offered, key=size)):
        kernel = compiled(config, gated=gated, width=width)
        assert kernel.stack_bytes == 0
        assert kernel.shared_bytes <= 227 * 1024
        assert "cp.async.cg.shared.global" in kernel.ptx or "evict_first.L2::cache_hint.v4.b32" in kernel.ptx


def size(config: Config) -> tuple[int, int]:
    """What a program holds."""
    return config["BLOCK_N"] * config["STAGES"], -config.num_warps


# of each height of tiles the deepest: more stages are the same loop
SKINNY = {
    f"{tokens} {gated} {rows}": (tokens, gated, max(offered, key=lambda config: config["BLOCK_K"]))
    for tokens in (16, 32, 64)
    for gated in (False, True)
    for rows in (32, 64, 128)
    if (offered := [c for c in skinny_candidates(tokens, gated=gated) if c["BLOCK_N"] == rows and c.num_stages == 3])
}


@pytest.mark.parametrize("case", SKINNY)
def test_few_rows_are_normed_on_their_way_to_tensor_cores(case: str) -> None:
    tokens, gated, config = SKINNY[case]
    with FakeTensorMode(), dry_run() as kernels, overridden(triton_skinny.OPERATION, config):
        x, norm, weight = empty(tokens, 4096), empty(4096), empty(28672, 4096)
        squares, kind = empty(64, tokens, dtype=torch.float32), "silu" if gated else None
        normed_linear(x, norm, weight, 1e-5, squares=squares, kind=kind, variant="triton")  # type: ignore[arg-type]
    (kernel,) = kernels
    assert kernel.name == "normed_skinny_kernel"
    assert in_tensor_cores_at_the_speed_of_memory(kernel)


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("tokens", [16, 64])
def test_a_sum_and_its_squares_spill_nothing_behind_the_product(tokens: int, splits: int) -> None:
    offered = [config for config in plain.candidates(tokens, 4096) if config["SPLITS"] == splits]
    largest = max(offered, key=lambda config: (config["BLOCK_N"], config["BLOCK_K"]))
    with FakeTensorMode(), dry_run() as kernels, overridden(plain.OPERATION, largest):
        add_linear_(empty(tokens, 14336), empty(4096, 14336), empty(tokens, 4096), variant="triton")
    assert [kernel.name for kernel in kernels] == ["skinny_kernel", "add_parts_kernel"][: 1 + (splits > 1)]
    assert in_tensor_cores_at_the_speed_of_memory(kernels[0])
    assert kernels[-1].stack_bytes == 0


def in_tensor_cores_at_the_speed_of_memory(kernel: CompiledKernel) -> bool:
    assert kernel.stack_bytes == 0
    assert kernel.shared_bytes <= 227 * 1024
    assert kernel.warnings == []
    assert kernel.count(r"LDGSTS.*\.128") > 0
    narrow = kernel.count("LDGSTS") - kernel.count(r"LDGSTS.*\.128")
    assert narrow <= kernel.config.num_stages  # of the norm's weight, once a stage
    return kernel.count("HGMMA" if kernel.config["BLOCK_N"] >= 64 else "HMMA") > 0
