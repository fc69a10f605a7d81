import re

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stentor.kernels.launching.copy_engine import COPY_ENGINE, THREADS
from stentor.kernels.launching.dry_run import CompiledKernel, dry_run
from stentor.kernels.linear_fp8 import linear_fp8, selection_for, triton_tiles
from stentor.kernels.linear_fp8.workloads import LLAMA_8B, QWEN3_32B, unfilled
from stentor.kernels.quantize import Quantized
from stentor.kernels.quantize.scheme import FP8
from stentor.kernels.tuning import Config, overridden

pytestmark = pytest.mark.compiles

# whether x is quantised, whether scales are by group and block
KINDS = ((True, False), (True, True), (False, False), (False, True))
SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024}


def compiled(
    capability: int, tokens: int, rows: int, width: int, quantised: bool, blocks: bool
) -> list[CompiledKernel]:
    with FakeTensorMode(), dry_run(capability) as kernels:
        made = unfilled(torch.device("cuda"), tokens, rows, width, FP8, quantised, blocks)
        x = made.x if made.x_scale is None else Quantized(made.x, made.x_scale)
        out = linear_fp8(x, made.weight, made.weight_scale, out_dtype=torch.bfloat16, variant="triton")
        assert out.shape == (tokens, rows)
    for kernel in kernels:
        assert kernel.stack_bytes == 0, kernel.config
        assert kernel.shared_bytes <= SHARED_BYTES[capability]
    return kernels


def copies(kernel: CompiledKernel) -> set[int]:
    """Bytes of the asynchronous copies to shared memory, a thread."""
    return {int(size, 0) for size in re.findall(r"cp\.async\.c[ag][^;]*?\], \[[^]]*\], (0x\w+|\d+)", kernel.ptx)}


@pytest.mark.parametrize(("quantised", "blocks"), KINDS)
def test_one_token_streams_the_weight_sixteen_bytes_a_thread(quantised: bool, blocks: bool) -> None:
    for rows, width in (*LLAMA_8B, *QWEN3_32B):
        (kernel,) = compiled(90, 1, rows, width, quantised, blocks)
        assert kernel.name == "gemv_kernel"
        assert 16 in copies(kernel)
        assert kernel.registers <= 128
        assert "cvt.rn.f16x2.e4m3x2" in kernel.ptx


@pytest.mark.parametrize(("quantised", "blocks"), KINDS)
@pytest.mark.parametrize("tokens", [16, 64])
def test_few_tokens_are_multiplied_in_tensor_cores(tokens: int, quantised: bool, blocks: bool) -> None:
    # with K split and not; kernels for the other shapes are the same
    for rows, width in (LLAMA_8B[2], LLAMA_8B[3]) if tokens == 16 else (QWEN3_32B[3],):
        kernels = compiled(90, tokens, rows, width, quantised, blocks)
        assert kernels[0].name == "skinny_kernel"
        assert 16 in copies(kernels[0])
        assert ("f32.e4m3.e4m3" if quantised else "f32.bf16.bf16") in kernels[0].ptx
        assert "wgmma.mma_async" in kernels[0].ptx
        assert "cvt.bf16.f16" not in kernels[0].ptx
        assert kernels[0].warnings == []
        assert [kernel.name for kernel in kernels[1:]] == ["add_parts_kernel"] * (kernels[0].config["SPLITS"] > 1)


@pytest.mark.parametrize(("quantised", "blocks"), KINDS)
@pytest.mark.parametrize("tokens", [256, 8192])
def test_many_tokens_are_multiplied_in_tensor_cores(tokens: int, quantised: bool, blocks: bool) -> None:
    for rows, width in (*LLAMA_8B, *QWEN3_32B):
        (kernel,) = compiled(90, tokens, rows, width, quantised, blocks)
        assert kernel.name == "tiles_kernel"
        assert 16 in copies(kernel)
        assert kernel.count("QGMMA" if quantised else "HGMMA") > 0
        assert kernel.count(r"LDGSTS.*\.128") > 0
        assert kernel.warnings == []


def test_the_copy_engine_brings_the_tiles_of_weights_in_blocks() -> None:
    made = unfilled(torch.device("meta"), 8192, *LLAMA_8B[2], FP8, True, True)
    sizes = [config for config in triton_tiles.candidates(made) if config["LOADS"] != THREADS]
    assert {config["LOADS"] for config in sizes} == {COPY_ENGINE, triton_tiles.COPY_ENGINE_AHEAD}
    for config in {(each["BLOCK_T"], each["BLOCK_N"], each["LOADS"]): each for each in sizes}.values():  # most stages
        with overridden(triton_tiles.OPERATION, config):
            (kernel,) = compiled(90, 8192, *LLAMA_8B[2], True, True)
        assert kernel.name == "tma_kernel"
        assert kernel.registers * 32 * config.num_warps * config["PROGRAMS_PER_SM"] <= 65536
        assert kernel.shared_bytes * config["PROGRAMS_PER_SM"] <= SHARED_BYTES[90]
        assert kernel.warnings == []
        assert kernel.count("UTMALDG") == 2 * config.num_stages  # of a step, and of those before the loop
        assert kernel.count("LDGSTS") == 0
        # a group of 128 is four products, and an addition for each output of a thread
        assert kernel.count("QGMMA") == 4
        assert kernel.count("FFMA") == config["BLOCK_T"] * config["BLOCK_N"] // (32 * config.num_warps)
        assert kernel.count("FMUL") == 2


def test_a_tile_in_one_block_of_scales_adds_with_one_instruction_an_output() -> None:
    (kernel,) = compiled(90, 8192, *LLAMA_8B[2], True, True)
    assert (kernel.name, kernel.count("FFMA"), kernel.count("FMUL")) == ("tiles_kernel", 64, 2)


def test_a_card_without_the_copy_engine_never_runs_its_kernel() -> None:
    config = Config.of(num_warps=4, BLOCK_T=64, BLOCK_N=64, BLOCK_K=128, LOADS=COPY_ENGINE, PROGRAMS_PER_SM=1)
    with overridden(triton_tiles.OPERATION, config):
        (kernel,) = compiled(80, 8192, *LLAMA_8B[0], True, True)
    assert kernel.name == "tiles_kernel"


@pytest.mark.parametrize(
    ("tokens", "quantised", "blocks"), [(1, True, False), (16, False, False), (16, True, True), (8192, True, True)]
)
def test_a_card_without_the_type_decodes_it(tokens: int, quantised: bool, blocks: bool) -> None:
    kernel = compiled(80, tokens, *LLAMA_8B[3], quantised, blocks)[0]
    assert "e4m3" not in kernel.ptx
    assert kernel.uses_tensor_cores == (tokens > 1)


@pytest.mark.parametrize("tokens", [1, 5, 100])
def test_rows_that_begin_anywhere_spill_nothing(tokens: int) -> None:
    assert compiled(90, tokens, 70, 301, True, True)
    assert compiled(90, tokens, 70, 301, True, False)
    assert compiled(90, tokens, 70, 301, False, False)


def test_torch_multiplies_many_rows_where_it_can() -> None:
    def chosen(capability: int, tokens: int, out_dtype: torch.dtype, blocks: bool = False, rows: int = 256) -> str:
        with FakeTensorMode(), dry_run(capability):
            made = unfilled(torch.device("cuda"), tokens, rows, 512, FP8, True, blocks)
            assert made.x_scale is not None
            x = Quantized(made.x, made.x_scale)
            return str(selection_for(x, made.weight, made.weight_scale, out_dtype=out_dtype))

    assert chosen(90, 1, torch.bfloat16) == "gemv"
    assert chosen(90, 64, torch.bfloat16) == "skinny; not gemv: it takes one token"
    assert chosen(90, 65, torch.bfloat16).startswith("scaled_mm; ")
    assert "compute capability 8.9, this is 8.0" in chosen(80, 65, torch.bfloat16)
    assert "no kernel for compute capability 12.0" in chosen(120, 65, torch.bfloat16)
    assert "it returns bfloat16 everywhere" in chosen(90, 65, torch.float32)
    assert "its scales are by tensor" in chosen(90, 65, torch.bfloat16, blocks=True)
    assert "multiples of 16, they are 250 and 512" in chosen(90, 65, torch.bfloat16, rows=250)
