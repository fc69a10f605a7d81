import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stentor.kernels.launching.dry_run import CompiledKernel, dry_run
from stentor.kernels.linear_fp8.workloads import LLAMA_8B, QWEN3_32B, unfilled
from stentor.kernels.linear_int8 import linear_int8
from stentor.kernels.quantize import Quantized

pytestmark = pytest.mark.compiles


def compiled(capability: int, tokens: int, rows: int, width: int, quantised: bool) -> list[CompiledKernel]:
    with FakeTensorMode(), dry_run(capability) as kernels:
        made = unfilled(torch.device("cuda"), tokens, rows, width, torch.int8, quantised, False)
        x = made.x if made.x_scale is None else Quantized(made.x, made.x_scale)
        linear_int8(x, made.weight, made.weight_scale, out_dtype=torch.bfloat16, variant="triton")
    for kernel in kernels:
        assert kernel.stack_bytes == 0, kernel.config
        assert kernel.shared_bytes <= 163 * 1024
    return kernels


@pytest.mark.parametrize("quantised", [True, False])
@pytest.mark.parametrize("capability", [80, 90])
def test_one_token_streams_the_weight_sixteen_bytes_a_thread(capability: int, quantised: bool) -> None:
    for rows, width in (*LLAMA_8B, *QWEN3_32B):
        (kernel,) = compiled(capability, 1, rows, width, quantised)
        assert kernel.name == "gemv_kernel"
        assert ", 0x10" in kernel.ptx
        # conversions of integers to floats run at an eighth of the speed: a few of sums, not one a weight
        assert kernel.ptx.count("cvt.rn.f32.s") <= 4


@pytest.mark.parametrize("quantised", [True, False])
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(
    ("tokens", "name"), [(16, "skinny_kernel"), (64, "skinny_kernel"), (256, "tiles_kernel"), (8192, "tiles_kernel")]
)
def test_more_are_multiplied_in_tensor_cores(tokens: int, name: str, capability: int, quantised: bool) -> None:
    for rows, width in (LLAMA_8B[3], QWEN3_32B[3]):
        kernel = compiled(capability, tokens, rows, width, quantised)[0]
        assert kernel.name == name
        assert ("s32.s8.s8" if quantised else "f32.bf16.bf16") in kernel.ptx
        assert ("wgmma.mma_async" in kernel.ptx) == (capability == 90)
