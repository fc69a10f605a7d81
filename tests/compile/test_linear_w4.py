"""What the compiler makes of the 4-bit kernels at the shapes of real models."""

from contextlib import nullcontext

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stentor.kernels.launching.dry_run import CompiledKernel, dry_run
from stentor.kernels.linear_w4 import empty_weight, linear_w4
from stentor.kernels.tuning import Config, overridden

pytestmark = pytest.mark.compiles

LLAMA, QWEN = (28672, 4096), (5120, 25600)
"""(N, K)"""


def compiled(
    shape: tuple[int, int], tokens: int, group: int, zeros: bool = False, capability: int = 90
) -> list[CompiledKernel]:
    with FakeTensorMode(), dry_run(capability) as kernels:
        weight = empty_weight(*shape, group=group, dtype=torch.bfloat16, device="cuda", zeros=zeros)
        linear_w4(torch.empty(tokens, shape[1], dtype=torch.bfloat16, device="cuda"), weight)
    for kernel in kernels:
        assert kernel.stack_bytes == 0, kernel.name
        assert kernel.shared_bytes <= 227 * 1024, kernel.name
    return kernels


@pytest.mark.parametrize(
    ("shape", "tokens", "group", "zeros"),
    [(LLAMA, 1, 128, False), (QWEN, 16, 32, True)],
)
def test_few_rows_stream_the_weight_through_the_tensor_cores(
    shape: tuple[int, int], tokens: int, group: int, zeros: bool
) -> None:
    (kernel,) = compiled(shape, tokens, group, zeros)
    assert kernel.name == "linear_skinny"
    assert kernel.uses_tensor_cores
    assert "cp.async.cg.shared.global" in kernel.ptx  # 16 bytes, the only size of this instruction
    assert "cp.async.ca.shared.global" not in kernel.ptx
    assert "st.shared.b16" not in kernel.ptx.split("mma.sync")[0]  # operands come as they were loaded
    assert kernel.registers <= 128


@pytest.mark.parametrize(
    ("group", "zeros", "sizes", "most"),
    [
        (128, False, {}, 2.9),
        (128, True, {}, 3.4),
        (128, False, {"ROWS": 16, "STEPS": 1}, 2.7),
        (128, False, {"ROWS": 32, "STEPS": 1}, 2.1),
        (32, False, {"ROWS": 32, "STEPS": 1}, 2.9),
    ],
    ids=str,
)
def test_a_weight_costs_few_instructions(group: int, zeros: bool, sizes: dict[str, int], most: float) -> None:
    """At 4.8 TB/s of weights of four bits, an H200's threads have 3.1 each, all else apart."""
    config = Config.of(SLICES=8, TOKENS=8, num_warps=8, num_stages=4, **sizes)
    with overridden("linear_planes_skinny", config) if sizes else nullcontext():
        (kernel,) = compiled((4096, 4096), 1, group, zeros)
    assert instructions_a_weight(kernel) <= most
    # with STEPS of 1 nothing is subtracted
    assert (sum(each.startswith(("HFMA2", "HADD2.BF16")) for each in kernel.loop) > 0) == ("STEPS" not in sizes)


def instructions_a_weight(kernel: CompiledKernel) -> float:
    """Of a thread, in the loop."""
    sizes = kernel.config
    return len(kernel.loop) * 32 * sizes.num_warps / (sizes["SLICES"] * sizes["ROWS"] * 128)


@pytest.mark.parametrize(("shape", "tokens", "group", "zeros"), [(LLAMA, 64, 128, False), (QWEN, 256, 128, True)])
def test_many_rows_meet_floats_made_in_registers(shape: tuple[int, int], tokens: int, group: int, zeros: bool) -> None:
    kernel = compiled(shape, tokens, group, zeros)[0]
    assert kernel.name == "linear_general"
    assert "wgmma" in kernel.ptx
    assert "st.shared.v4" not in kernel.ptx.split("wgmma")[0]
    assert kernel.warnings == [], "products wait for each other"


def test_an_older_gpu_is_served() -> None:
    assert compiled(LLAMA, 64, 128, capability=80)[0].uses_tensor_cores


@pytest.mark.parametrize(("capability", "shared"), [(90, True), (100, False), (103, False)])
def test_blackwell_is_not_given_multiplications_that_share_an_accumulator(capability: int, shared: bool) -> None:
    from stentor.kernels.linear_w4.triton import limits  # late: it imports Triton

    weight = empty_weight(*LLAMA, group=128, dtype=torch.bfloat16, device="meta")
    with dry_run(capability):
        bounds = limits(weight.planes)
    assert (bounds["DENSE"] > bounds["SKINNY"] + 1) == shared
    assert "tcgen05.mma" not in compiled(LLAMA, 16, 128, capability=capability)[0].ptx


def test_a_weight_is_made_into_floats_without_spills() -> None:
    from stentor.kernels.linear_w4.triton import floats  # late: it imports Triton

    with FakeTensorMode(), dry_run() as kernels:
        weight = empty_weight(*LLAMA, group=128, dtype=torch.bfloat16, device="cuda", zeros=True)
        floats(weight.planes, torch.empty(512, LLAMA[1], dtype=torch.bfloat16, device="cuda"), 512, 1024)
    assert [(kernel.name, kernel.stack_bytes) for kernel in kernels] == [("make_floats", 0)]
    assert "st.global.v4" in kernels[0].ptx
