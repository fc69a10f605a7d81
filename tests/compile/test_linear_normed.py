"""What the compiler makes of the product of one row with its norm and its gate."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stentor.kernels import ActivationKind, normed_linear
from stentor.kernels.dry_run import CompiledKernel, dry_run
from stentor.kernels.linear_normed.triton_row import DEFAULT, OPERATION
from stentor.kernels.linear_normed.tunables import SHAPES, candidates
from stentor.kernels.tuning import Config, overridden

pytestmark = pytest.mark.compiles


def compiled(config: Config, *, gated: bool, width: int = 4096) -> CompiledKernel:
    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device="cuda")

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
