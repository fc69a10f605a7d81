"""What the compiler makes of the kernels for GGUF weights at the shapes of real models."""

from contextlib import nullcontext

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stentor.kernels.launching.dry_run import CompiledKernel, dry_run
from stentor.kernels.linear_gguf import Kind, empty_weight, linear_gguf
from stentor.kernels.tuning import Config, overridden
from stentor.tests.compile.test_linear_w4 import instructions_a_weight

pytestmark = pytest.mark.compiles

LLAMA, QWEN = (28672, 4096), (5120, 25600)
"""(N, K)"""


def compiled(kind: Kind, shape: tuple[int, int], tokens: int) -> CompiledKernel:
    with FakeTensorMode(), dry_run() as kernels:
        weight = empty_weight(*shape, kind, "cuda")
        linear_gguf(torch.empty(tokens, shape[1], dtype=torch.bfloat16, device="cuda"), weight)
    for kernel in kernels:
        assert kernel.stack_bytes == 0, kernel.name
        assert kernel.shared_bytes <= 227 * 1024, kernel.name
    return kernels[0]


@pytest.mark.parametrize(
    ("kind", "shape", "tokens"),
    [("Q4_K", LLAMA, 1), ("Q6_K", QWEN, 1), ("Q8_0", LLAMA, 16), ("Q5_K", LLAMA, 1)],
)
def test_few_rows_stream_the_weight_through_the_tensor_cores(kind: Kind, shape: tuple[int, int], tokens: int) -> None:
    kernel = compiled(kind, shape, tokens)
    assert kernel.name == "linear_skinny"
    assert kernel.uses_tensor_cores
    assert "cp.async.cg.shared.global" in kernel.ptx  # 16 bytes, the only size of this instruction
    assert "cp.async.ca.shared.global" not in kernel.ptx


@pytest.mark.parametrize(
    ("kind", "sizes", "most"),
    [
        ("Q4_K", {}, 4.8),
        ("Q4_K", {"ROWS": 32, "STEPS": 1}, 3.3),
        ("Q4_0", {"ROWS": 32, "STEPS": 1}, 2.9),
        ("Q6_K", {}, 6.6),
        ("Q8_0", {}, 6.1),
    ],
    ids=str,
)
def test_a_weight_costs_few_instructions(kind: Kind, sizes: dict[str, int], most: float) -> None:
    """At 4.8 TB/s an H200's threads have 3.5 each for a weight of Q4_K, 5.1 for one of Q6_K and 6.5 of Q8_0."""
    config = Config.of(SLICES=8, TOKENS=8, num_warps=8, num_stages=4, **sizes)
    with overridden("linear_planes_skinny", config) if sizes else nullcontext():
        kernel = compiled(kind, (4096, 4096), 1)
    assert instructions_a_weight(kernel) <= most
    if kind.endswith("K"):  # four factors in a word
        assert not [each for each in kernel.loop if each.startswith(("LDG.E.U8", "LDG.E.S8"))]


@pytest.mark.parametrize(
    ("kind", "shape", "tokens"),
    [("Q4_K", QWEN, 64), ("Q6_K", LLAMA, 256), ("Q5_1", LLAMA, 64)],
)
def test_many_rows_meet_floats_made_in_registers(kind: Kind, shape: tuple[int, int], tokens: int) -> None:
    kernel = compiled(kind, shape, tokens)
    assert kernel.name == "linear_general"
    assert "wgmma" in kernel.ptx
    assert kernel.warnings == [], "products wait for each other"
