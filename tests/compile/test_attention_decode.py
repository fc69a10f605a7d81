import re
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from stentor.kernels.attention import AttentionBatch, paged_attention
from stentor.kernels.attention.arguments import AttentionArgs
from stentor.kernels.attention.decode_tunables import candidates
from stentor.kernels.attention.triton_decode import paged_decode
from stentor.kernels.launching.dry_run import CompiledKernel, dry_run
from stentor.kernels.tuning import Config, overridden

pytestmark = pytest.mark.compiles

FP8 = torch.float8_e4m3fn
LLAMA_8B, QWEN_32B = 32, 64
"""Query heads; both have 8 kv heads of 128 dims."""


def compiled(
    heads: int,
    rows: int,
    size: int,
    dtype: torch.dtype,
    *,
    query_len: int = 1,
    ragged: bool = False,
    dim: int = 128,
    capability: int = 90,
    config: Config | None = None,
    everything: bool = False,
    sloped: bool = False,
    keys: int = 4096,
) -> list[CompiledKernel]:
    """The kernels of a launch over caches of ``dtype``, in bfloat16 unless they are float32; ``everything``: window,
    soft cap and sinks."""
    own = torch.float32 if dtype == torch.float32 else torch.bfloat16

    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="cuda")

    with (
        FakeTensorMode(),
        dry_run(capability) as kernels,
        nullcontext() if config is None else overridden("paged_decode", config),
    ):
        k, v = (empty(rows * keys // size, 8, size, dim, dtype=dtype) for _ in "kv")
        scale = empty(8, dtype=torch.float32) if dtype == FP8 else None
        args = AttentionArgs(
            empty(rows * query_len, heads, dim, dtype=own),
            k.transpose(2, 3),
            v,
            empty(rows + 1),
            empty(rows),
            empty(rows, keys // size),
            empty(rows * query_len, heads, dim, dtype=own),
            scale=dim**-0.5,
            window=1000 if everything else 0,
            softcap=30.0 if everything else 0.0,
            sinks=empty(heads, dtype=torch.float32) if everything else None,
            slopes=empty(heads, dtype=torch.float32) if sloped else None,
            distances=None,
            causal=True,
            k_scale=scale,
            v_scale=scale,
            max_seq_len=keys,
        )
        paged_decode(args, rows=rows, query_len=query_len, ragged=ragged)
    return kernels


def copies_under_way(kernel: CompiledKernel) -> int:
    """Tiles of keys or of values that are still being copied while a turn computes."""
    return max(int(groups) for groups in re.findall(r"cp\.async\.wait_group\s+(\d+)", kernel.ptx))


def check(kernels: list[CompiledKernel], shared_kib: int = 227) -> None:
    """Nothing is spilled, and keys and values come in pieces of 16 bytes, a tile ahead at least."""
    split, decode = kernels
    assert split.stack_bytes == 0
    assert decode.stack_bytes == 0
    assert decode.shared_bytes <= shared_kib * 1024
    assert decode.uses_tensor_cores
    copies = re.findall(r"cp\.async\.c[ag]\.shared\.global.*?(0x[0-9a-f]+)", decode.ptx)
    assert copies
    assert set(copies) == {"0x10"}
    assert decode.count("HG?MMA") > 0  # the latter where a tile of queries is as high as its 64 rows
    assert decode.count(r"LDGSTS.*\.128") == decode.count("LDGSTS") > 0
    assert copies_under_way(decode) >= 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, FP8])
@pytest.mark.parametrize(("heads", "rows", "size"), [(LLAMA_8B, 1, 128), (QWEN_32B, 64, 16), (LLAMA_8B, 256, 64)])
def test_models_shapes_stream_their_caches(heads: int, rows: int, size: int, dtype: torch.dtype) -> None:
    kernels = compiled(heads, rows, size, dtype)
    check(kernels)
    decode = kernels[1]
    threads = 32 * decode.config.num_warps
    programs = min(65536 // (-(-decode.registers // 8) * 8 * threads), 228 * 1024 // (decode.shared_bytes + 1024))
    under_way = copies_under_way(decode) * decode.config["TILE"] * 128 * dtype.itemsize
    assert programs * under_way >= 64 * 1024  # of a multiprocessor; latency times bandwidth is some 30 KiB


@pytest.mark.parametrize("dtype", [torch.bfloat16, FP8])
def test_slopes_spill_nothing(dtype: torch.dtype) -> None:
    check(compiled(LLAMA_8B, 64, 16, dtype, sloped=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, FP8])
@pytest.mark.parametrize(("heads", "query_len", "dim"), [(QWEN_32B, 8, 128), (QWEN_32B, 8, 256)])
def test_several_new_tokens_and_large_heads_spill_nothing(
    heads: int, query_len: int, dim: int, dtype: torch.dtype
) -> None:
    check(compiled(heads, 64, 64, dtype, query_len=query_len, dim=dim, everything=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, FP8])
@pytest.mark.parametrize(("heads", "query_len"), [(LLAMA_8B, 2), (LLAMA_8B, 8), (QWEN_32B, 8)])
def test_rows_of_drafts_spill_nothing(heads: int, query_len: int, dtype: torch.dtype) -> None:
    check(compiled(heads, 64, 64, dtype, query_len=query_len, ragged=True, everything=True))


def test_rows_with_drafts_take_one_launch_a_layer_after_the_plan_of_all() -> None:
    tokens, rows = 11, 4

    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="cuda")

    with FakeTensorMode(), dry_run() as kernels:
        k, v = (empty(rows * 64, 8, 64, 128, dtype=torch.bfloat16) for _ in "kv")
        slots = empty(tokens, dtype=torch.int64)
        lengths = empty(rows + 1), empty(rows), empty(rows, 64), slots
        batch = AttentionBatch(*lengths, 4, 4096, decode_rows=rows, decode_query_len=4, ragged_tokens=tokens)
        q = empty(tokens, LLAMA_8B, 128, dtype=torch.bfloat16)
        for _ in range(2):
            paged_attention(q, k.transpose(2, 3), v, batch, scale=128**-0.5, variant="triton")
    assert [kernel.name for kernel in kernels] == ["split_kernel", "decode_kernel", "decode_kernel"]


def test_a_program_copies_without_a_word_to_its_other_warps_and_is_one_for_all_sizes_of_batches() -> None:
    few, many = (compiled(LLAMA_8B, rows, 64, torch.bfloat16)[1] for rows in (4, 256))
    assert few.cubin == many.cubin
    copies = next(at for at, each in enumerate(few.instructions) if each.startswith("LDGSTS"))
    assert not [each for each in few.instructions[:copies] if each.startswith(("BAR", "SHFL", "REDUX", "MUFU"))]


def test_a_plan_is_made_by_one_kernel_for_a_range_of_batches_whatever_their_lengths() -> None:
    """One that is compiled while a step waits for it takes 140 ms."""
    batches = [(rows, keys) for rows in (17, 24, 33, 64) for keys in (256, 1024, 4096)]
    assert len({compiled(LLAMA_8B, rows, 64, torch.bfloat16, keys=keys)[0].cubin for rows, keys in batches}) == 1


def test_programs_count_themselves_once_what_all_their_threads_have_stored_is_in_memory() -> None:
    _, decode = compiled(LLAMA_8B, 64, 64, torch.bfloat16)
    before, after = re.split(r"atom\.global\.gpu\.acq_rel\.add", decode.ptx)
    assert "bar.sync" in before[before.rindex("st.global") :]
    told = after.index("bar.sync")  # the one thread tells the others
    loads = re.findall(r"ld\.global\S*", after)
    assert loads
    assert all(load.startswith("ld.global.cg.") for load in loads)  # not what this multiprocessor has read before
    assert told < after.index("ld.global")


@pytest.mark.parametrize("dim", [64, 128])
def test_float32_has_no_tensor_cores_and_spills_nothing_either(dim: int) -> None:
    assert all(kernel.stack_bytes == 0 for kernel in compiled(LLAMA_8B, 4, 64, torch.float32, dim=dim))


@pytest.mark.parametrize(("capability", "dtype"), [(80, torch.bfloat16), (89, FP8)])
def test_older_gpus_are_served(capability: int, dtype: torch.dtype) -> None:
    check(compiled(LLAMA_8B, 64, 16, dtype, capability=capability), shared_kib=99)


def test_the_largest_candidate_of_the_tuner_fits() -> None:
    largest = max(candidates(torch.bfloat16), key=lambda config: (config["TILE"] * config.num_stages, config.num_warps))
    kernels = compiled(QWEN_32B, 64, 128, torch.bfloat16, query_len=8, config=largest)
    assert kernels[1].shared_bytes <= 227 * 1024
