"""What the compiler makes of the kernels for GGUF weights at the shapes of real models."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stentor.kernels.dry_run import CompiledKernel, dry_run
from stentor.kernels.linear_gguf import Kind, empty_weight, linear_gguf

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
    ("kind", "shape", "tokens"),
    [("Q4_K", QWEN, 64), ("Q6_K", LLAMA, 256), ("Q5_1", LLAMA, 64)],
)
def test_many_rows_meet_floats_made_in_registers(kind: Kind, shape: tuple[int, int], tokens: int) -> None:
    kernel = compiled(kind, shape, tokens)
    assert kernel.name == "linear_general"
    assert "wgmma" in kernel.ptx
    assert kernel.warnings == [], "products wait for each other"
