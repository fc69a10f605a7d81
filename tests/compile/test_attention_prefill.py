"""Prefill attention at the shapes of Llama-3.1-8B (32 heads) and Qwen3-32B (64): 8 kv heads of 128 dims; with sinks at
those of gpt-oss, of 64."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from stentor.kernels import AttentionBatch, paged_attention
from stentor.kernels.attention import choose, triton_prefill
from stentor.kernels.attention.prefill_tunables import tunables
from stentor.kernels.launching import repeated
from stentor.kernels.launching.copy_engine import COPY_ENGINE, THREADS
from stentor.kernels.launching.dry_run import CompiledKernel, dry_run
from stentor.kernels.tuning import Config, overridden
from stentor.tests.compile.tuned import check_looked_up

pytestmark = pytest.mark.compiles

FP8 = torch.float8_e4m3fn
SHARED = {80: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024}


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda")


def compiled_prefill(
    heads: int, size: int, cache: torch.dtype = torch.bfloat16, *, tokens: int = 8192, **options: Any
) -> CompiledKernel:
    (kernel,) = compiled_kernels(heads, size, cache, tokens=tokens, keys=max(tokens, 512), **options)
    return kernel


def compiled_kernels(
    heads: int,
    size: int,
    cache: torch.dtype,
    *,
    tokens: int,
    keys: int,
    sequences: int = 2,
    dim: int = 128,
    capability: int = 90,
    sunk: bool = False,
    sloped: bool = False,
    **options: Any,
) -> list[CompiledKernel]:
    with FakeTensorMode(), dry_run(capability) as compiled:
        k, v = (empty(1000, 8, size, dim, dtype=cache) for _ in "kv")
        batch = AttentionBatch(
            empty(sequences + 1, dtype=torch.int32),
            empty(sequences, dtype=torch.int32),
            empty(sequences, keys // size, dtype=torch.int32),
            empty(tokens, dtype=torch.int64),
            tokens,
            keys,
        )
        q = empty(tokens, heads, dim)
        scales = (empty(8, dtype=torch.float32) if cache == FP8 else None for _ in "kv")
        k_scale, v_scale = scales
        sinks, slopes = (empty(heads, dtype=torch.float32) if given else None for given in (sunk, sloped))
        heads_own: dict[str, Any] = {"sinks": sinks, "slopes": slopes, "k_scale": k_scale, "v_scale": v_scale}
        assert choose(q, k.transpose(2, 3)) == "triton"
        paged_attention(q, k.transpose(2, 3), v, batch, scale=0.1, **heads_own, **options)
    assert compiled[0].name == ("invariant_kernel" if options.get("invariant") else "_prefill_kernel")
    for kernel in compiled:
        assert kernel.stack_bytes == 0
        assert kernel.shared_bytes <= SHARED[capability]
    return compiled


@pytest.mark.parametrize(
    ("heads", "size", "cache"),
    [
        (32, 16, torch.bfloat16),
        (32, 64, torch.bfloat16),
        (32, 128, torch.bfloat16),
        (32, 16, FP8),
        (32, 64, FP8),
        (32, 128, FP8),
        (64, 16, torch.bfloat16),
        (64, 128, FP8),
    ],
)
def test_a_long_prompt_uses_warpgroup_products_and_fetches_ahead(heads: int, size: int, cache: torch.dtype) -> None:
    kernel = compiled_prefill(heads, size, cache)
    assert "wgmma.mma_async" in kernel.ptx
    assert set(re.findall(r"cp\.async\.c\w\.shared\.global \[[^]]*\], \[[^]]*\], (\w+)", kernel.ptx)) == {"0x10"}
    assert waits(kernel) - {0}, "it waits for the tile it has just asked for"
    assert kernel.warnings == []
    # scores of 64 keys by 128 dims and values of as many, a warpgroup or two; no older products beside them
    assert kernel.count("HGMMA") >= 16
    assert kernel.count("HMMA") == 0
    assert kernel.count(r"LDGSTS.*\.128") == kernel.count("LDGSTS") > 0


@pytest.mark.parametrize(("heads", "size", "rows"), [(32, 64, 128), (64, 128, 128), (32, 16, 64)])
def test_float8_keys_reach_the_tensor_cores_as_they_are_stored(heads: int, size: int, rows: int) -> None:
    sizes = {"BLOCK_M": rows, "BLOCK_N": 64, "num_warps": rows // 16, "num_stages": 3}
    made = []
    for bits in (16, 8):
        with overridden("prefill_attention", Config.of(SCORE_BITS=bits, **sizes)):
            made.append(compiled_prefill(heads, size, FP8))
    widened, kernel = made
    assert widened.count("QGMMA") == 0
    # scores of 128 dims, 32 an instruction, in each of two loops; values stay products of 16 bits
    assert kernel.count("QGMMA") >= 8
    assert kernel.count("HGMMA") == widened.count("HGMMA") - 2 * kernel.count("QGMMA") > 0
    assert kernel.count("F2FP") < widened.count("F2FP")
    assert kernel.shared_bytes < widened.shared_bytes
    assert waits(kernel) - {0}, "it waits for the tile it has just asked for"
    assert kernel.warnings == []


@pytest.mark.parametrize(("heads", "rows", "size", "stages"), [(32, 128, 128, 2), (64, 128, 64, 3), (32, 64, 64, 4)])
def test_the_copy_engine_brings_the_tiles_that_all_queries_see(heads: int, rows: int, size: int, stages: int) -> None:
    sizes = {"BLOCK_M": rows, "BLOCK_N": size, "num_warps": rows // 16, "num_stages": stages}
    made = []
    for loads in (THREADS, COPY_ENGINE):
        with overridden("prefill_attention", Config.of(LOADS=loads, **sizes)):
            made.append(compiled_prefill(heads, size))
    by_threads, kernel = made
    assert by_threads.count("UTMALDG") == 0
    assert kernel.count("UTMALDG") == 2 * stages  # keys and values, of a turn and of those before the loop
    # those that only some queries see are masked, and come by threads
    assert kernel.count("LDGSTS") == by_threads.count("LDGSTS") // 2
    assert kernel.count("HGMMA") == by_threads.count("HGMMA")
    assert kernel.warnings == []


@pytest.mark.parametrize(
    ("heads", "size", "cache", "options"),
    [
        (32, 16, torch.bfloat16, {}),
        (32, 64, torch.bfloat16, {}),
        (32, 16, FP8, {}),
        (32, 64, FP8, {}),
        (64, 64, torch.bfloat16, {"window": 4096, "softcap": 30.0}),
        (64, 64, torch.bfloat16, {"dim": 64, "sunk": True}),
        (32, 16, torch.bfloat16, {"sloped": True}),
    ],
)
def test_a_few_tokens_after_a_long_prefix_are_split_and_fetch_ahead(
    heads: int, size: int, cache: torch.dtype, options: dict[str, Any]
) -> None:
    kernel, join = compiled_kernels(heads, size, cache, tokens=16, keys=32768, sequences=1, **options)
    assert join.name == "_join_kernel"
    assert "wgmma.mma_async" in kernel.ptx
    assert 2 * kernel.shared_bytes <= SHARED[90] + 1024, "a multiprocessor holds fewer programs than it is given"
    assert set(re.findall(r"cp\.async\.c\w\.shared\.global \[[^]]*\], \[[^]]*\], (\w+)", kernel.ptx)) == {"0x10"}
    assert waits(kernel) - {0}, "it waits for the tile it has just asked for"
    assert "ld.global.v4" in join.ptx


def test_splits_of_other_numbers_compile_nothing_new() -> None:
    batches = ((16, 32768), (31, 4096), (9, 100_016))
    made = [compiled_kernels(32, 16, torch.bfloat16, tokens=tokens, keys=keys) for tokens, keys in batches]
    assert len({(kernel.ptx, join.ptx) for kernel, join in made}) == 1


@pytest.mark.parametrize(
    ("tokens", "options"),
    [
        (20, {}),
        (8192, {"window": 1024, "softcap": 30.0}),
        (8192, {"dim": 64, "window": 128, "sunk": True}),
        (8192, {"causal": False}),
    ],
    ids=["few", "windowed", "sunk", "cross"],
)
def test_what_else_models_ask_for_spills_nothing(tokens: int, options: dict[str, Any]) -> None:
    kernel = compiled_prefill(32, 16, tokens=tokens, **options)
    assert "wgmma.mma_async" in kernel.ptx
    assert waits(kernel) - {0}


@pytest.mark.parametrize(
    ("capability", "dim", "cache"),
    [(80, 128, torch.bfloat16), (80, 256, torch.bfloat16), (80, 128, FP8), (89, 128, FP8)],
)
def test_older_cards_run_it_in_the_shared_memory_they_have(capability: int, dim: int, cache: torch.dtype) -> None:
    kernel = compiled_prefill(32, 16, cache, dim=dim, capability=capability)
    assert "mma.sync" in kernel.ptx


def test_batches_of_other_numbers_compile_nothing_new() -> None:
    batches = ((8192, 2), (5003, 1), (4096, 16))
    made = [compiled_prefill(32, 64, tokens=tokens, sequences=sequences).ptx for tokens, sequences in batches]
    assert len(set(made)) == 1


def test_the_tuner_times_what_launches_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = [tunable for tunable in tunables() if tunable.operation == triton_prefill.OPERATION]
    check_looked_up(triton_prefill, (repeated,), offered, monkeypatch)
    assert len({tunable.key for tunable in offered}) == len(offered)


def waits(kernel: CompiledKernel) -> set[int]:
    """How many fetches may still be under way where the kernel waits for one."""
    return {int(number) for number in re.findall(r"cp\.async\.wait_group\s+(\d+)", kernel.ptx)}


@pytest.mark.parametrize(
    ("heads", "size", "cache", "options"),
    [
        (32, 16, torch.bfloat16, {}),
        (32, 64, torch.bfloat16, {}),
        (64, 64, FP8, {}),
        (64, 64, torch.bfloat16, {"window": 4096, "softcap": 30.0}),
        (64, 64, torch.bfloat16, {"dim": 64, "sunk": True}),
        (32, 16, torch.bfloat16, {"sloped": True}),
    ],
)
def test_batch_invariant_attention_of_one_token_and_of_many_is_one_kernel(
    heads: int, size: int, cache: torch.dtype, options: dict[str, Any]
) -> None:
    options |= {"invariant": True}
    few, join = compiled_kernels(heads, size, cache, tokens=1, keys=8192, sequences=1, **options)
    (many,) = compiled_kernels(heads, size, cache, tokens=8192, keys=8192, **options)
    assert few.ptx == many.ptx
    assert join.name == "join_kernel"
    assert many.count("HGMMA") > 0
    assert many.count("HMMA") == 0
    assert many.warnings == []
    # joined in registers and by the second kernel: no product is fused with a sum, and rounded once, in one of them
    assert not re.search(r"\bfma\.rn(\.ftz)?\.f32", join.ptx)
