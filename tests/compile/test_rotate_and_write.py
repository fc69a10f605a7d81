import re

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stentor.kernels.kv_cache import make_kv_cache, write_kv_
from stentor.kernels.launching.dry_run import CompiledKernel, dry_run
from stentor.kernels.rotary import rotary_
from stentor.kernels.rotate_and_write import rotate_and_write_kv_

pytestmark = pytest.mark.compiles

FP8 = torch.float8_e4m3fn
LLAMA_8B = (32, 8, 128)
QWEN3_32B = (64, 8, 128)


def heads_of(tokens: int, shape: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Slices of one projection; fake tensors of a GPU cannot be sliced where there is none."""
    q_heads, kv_heads, dim = shape
    row = (q_heads + 2 * kv_heads) * dim
    q, k, v = (
        torch.empty_strided((tokens, count, dim), (row, dim, 1), dtype=torch.bfloat16, device="cuda")
        for count in (q_heads, kv_heads, kv_heads)
    )
    return q, k, v


def compiled(
    tokens: int,
    shape: tuple[int, int, int],
    *,
    capability: int = 90,
    cache_dtype: torch.dtype = torch.bfloat16,
    norm: bool = False,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    sections: tuple[int, int, int] | None = None,
) -> CompiledKernel:
    with FakeTensorMode(), dry_run(capability) as kernels:
        q, k, v = heads_of(tokens, shape)
        _, kv_heads, dim = shape
        cos = torch.empty(4096, (rotary_dim or dim) // 2, device="cuda")
        weight = torch.empty(dim, dtype=torch.bfloat16, device="cuda") if norm else None
        scale = torch.empty(kv_heads, device="cuda") if cache_dtype == FP8 else None
        rows = (tokens,) if sections is None else (3, tokens)
        rotate_and_write_kv_(
            q,
            k,
            v,
            cos,
            cos,
            torch.empty(rows, dtype=torch.int64, device="cuda"),
            *make_kv_cache(1000, kv_heads, dim, 16, cache_dtype, "cuda"),
            torch.empty(tokens, dtype=torch.int64, device="cuda"),
            q_norm=weight,
            k_norm=weight,
            eps=1e-6,
            interleaved=interleaved,
            sections=sections,
            k_scale=scale,
            v_scale=scale,
            variant="triton",
        )
    (kernel,) = kernels
    assert kernel.stack_bytes == 0
    assert kernel.registers <= 128
    return kernel


def widths(kernel: CompiledKernel, instruction: str) -> set[str]:
    """How wide the accesses to global memory are, without those of single numbers such as a slot."""
    return set(re.findall(rf"{instruction}\.global\.(v\d\.b\d+)", kernel.ptx))


@pytest.mark.parametrize("tokens", [1, 8192])
@pytest.mark.parametrize(("shape", "norm"), [(LLAMA_8B, False), (QWEN3_32B, True)])
@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, FP8])
def test_one_launch_reads_and_writes_sixteen_bytes_a_thread(
    tokens: int, shape: tuple[int, int, int], norm: bool, cache_dtype: torch.dtype
) -> None:
    kernel = compiled(tokens, shape, cache_dtype=cache_dtype, norm=norm)
    assert widths(kernel, "ld") == {"v4.b32"}
    # float8 takes half of what bfloat16 does
    assert "v4.b32" in widths(kernel, "st") <= ({"v4.b32"} if cache_dtype != FP8 else {"v4.b32", "v2.b32"})
    assert ("e4m3x2.f32" in kernel.ptx) == (cache_dtype == FP8)
    assert "fma.rn.f32" not in kernel.ptx.split("rsqrt")[-1], "rotary rounds each product"


def test_interleaved_pairs_are_split_in_registers() -> None:
    kernel = compiled(8192, LLAMA_8B, norm=True, interleaved=True)
    assert widths(kernel, "ld") == widths(kernel, "st") == {"v4.b32"}
    assert "ld.shared" not in kernel.ptx


@pytest.mark.parametrize("shape", [(32, 8, 80), (8, 1, 256), (28, 4, 96)])
def test_other_heads_compile_without_spills(shape: tuple[int, int, int]) -> None:
    compiled(8192, shape, norm=True, rotary_dim=shape[2] // 2, sections=(shape[2] // 4, 0, 0))


@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, FP8])
def test_older_gpus_compile_it_too(cache_dtype: torch.dtype) -> None:
    kernel = compiled(64, QWEN3_32B, capability=80, cache_dtype=cache_dtype, norm=True)
    assert "e4m3" not in kernel.ptx


def test_rotary_and_the_write_compile_alone() -> None:
    with FakeTensorMode(), dry_run() as kernels:
        q, k, v = heads_of(8192, LLAMA_8B)
        numbers = torch.empty(8192, dtype=torch.int64, device="cuda")
        cos = torch.empty(4096, 64, device="cuda")
        rotary_(q, k, cos, cos, numbers)
        write_kv_(k, v, *make_kv_cache(1000, 8, 128, 16, k.dtype, "cuda"), numbers)
    assert [kernel.stack_bytes for kernel in kernels] == [0, 0]
    assert all(widths(kernel, "ld") == widths(kernel, "st") == {"v4.b32"} for kernel in kernels)
