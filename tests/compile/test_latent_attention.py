import re
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from stentor.kernels import AttentionBatch, latent_attention, top_tokens
from stentor.kernels.latent_attention.triton import OPERATION
from stentor.kernels.latent_attention.tunables import candidates
from stentor.kernels.launching.dry_run import CompiledKernel, dry_run
from stentor.kernels.sparse_index.triton import OPERATION as INDEX
from stentor.kernels.sparse_index.tunables import candidates as index_candidates
from stentor.kernels.tuning import Config, overridden

pytestmark = pytest.mark.compiles

RANK, DIM = 512, 576
V2_LITE, GLM_FLASH, V3 = 16, 20, 128
"""Heads."""


def compiled(
    heads: int, rows: int, size: int, dtype: torch.dtype = torch.bfloat16, *, config: Config | None = None
) -> list[CompiledKernel]:
    keys = 4096

    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="cuda")

    with (
        FakeTensorMode(),
        dry_run() as kernels,
        nullcontext() if config is None else overridden(OPERATION, config),
    ):
        queries, latents = empty(rows, heads, DIM, dtype=dtype), empty(rows * keys // size, size, DIM, dtype=dtype)
        latent_attention(queries, latents, batch_of(rows, keys, size), rank=RANK, scale=0.1)
    return kernels


@pytest.mark.parametrize(("heads", "rows", "size"), [(V2_LITE, 1, 16), (GLM_FLASH, 64, 64), (V3, 256, 64)])
def test_models_shapes_stream_their_latents_and_spill_nothing(heads: int, rows: int, size: int) -> None:
    kernels = compiled(heads, rows, size)
    names = [kernel.name for kernel in kernels]
    assert names == ["latent_kernel", "join_kernel"][: len(names)]
    assert len(names) == (1 if rows == 256 else 2), "few rows are split among programs"
    decode = kernels[0]
    assert all(kernel.stack_bytes == 0 for kernel in kernels)
    assert decode.shared_bytes <= 227 * 1024
    assert decode.uses_tensor_cores
    copies = re.findall(r"cp\.async\.c[ag]\.shared\.global.*?(0x[0-9a-f]+)", decode.ptx)
    assert set(copies) == {"0x10"}, "latents come in pieces of 16 bytes, ahead of their turn"


def batch_of(rows: int, keys: int, size: int) -> AttentionBatch:
    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="cuda")

    return AttentionBatch(
        empty(rows + 1), empty(rows), empty(rows, keys // size), empty(rows, dtype=torch.int64), 1, keys, rows
    )


@pytest.mark.parametrize(("block", "ratio"), [(64, 4), (16, 4), (16, 5)])
def test_an_index_of_entries_of_several_tokens_spills_nothing(block: int, ratio: int) -> None:
    """At the shapes of DeepSeek-V4; entries of 5 tokens do not fill blocks evenly."""
    rows, keys, heads, places = 64, 65536, 64, -(-block // ratio)

    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="cuda")

    with FakeTensorMode(), dry_run() as kernels:
        cache, weights = empty(rows * keys // block, places, 128), empty(rows, heads, dtype=torch.float32)
        batch, q = batch_of(rows, keys, block), empty(rows, heads, 128)
        top_tokens(q, weights, cache, batch, top_k=512, ratio=ratio, block=block)
    assert [kernel.name for kernel in kernels] == ["score_kernel", "select_kernel"]
    assert all(kernel.stack_bytes == 0 and kernel.shared_bytes <= 227 * 1024 for kernel in kernels)
    assert kernels[0].uses_tensor_cores
    assert "ld.global.v4" in kernels[0].ptx or "cp.async.cg" in kernels[0].ptx  # 16 bytes of a key at once


@pytest.mark.parametrize(("index_heads", "heads", "size"), [(64, V3, 64), (32, 64, 16)])
@pytest.mark.parametrize("config", [None, max(index_candidates(), key=lambda config: config["TILE"])])
def test_an_index_and_attention_to_what_it_chooses_spill_nothing(
    index_heads: int, heads: int, size: int, config: Config | None
) -> None:
    rows, keys, top_k = 64, 16384, 2048

    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="cuda")

    with (
        FakeTensorMode(),
        dry_run() as kernels,
        nullcontext() if config is None else overridden(INDEX, config),
    ):
        batch, weights = batch_of(rows, keys, size), empty(rows, index_heads, dtype=torch.float32)
        chosen = top_tokens(
            empty(rows, index_heads, 128), weights, empty(rows * keys // size, size, 128), batch, top_k=top_k
        )
        latents = empty(rows * keys // size, size, DIM)
        latent_attention(empty(rows, heads, DIM), latents, batch, rank=RANK, scale=0.1, chosen=chosen)
    assert [kernel.name for kernel in kernels][:3] == ["score_kernel", "select_kernel", "latent_kernel"]
    assert all(kernel.stack_bytes == 0 and kernel.shared_bytes <= 227 * 1024 for kernel in kernels)
    assert kernels[0].uses_tensor_cores
    assert kernels[2].uses_tensor_cores


@pytest.mark.parametrize("size", [16, 64])
def test_an_index_of_pools_and_attention_to_their_tokens_spill_nothing(size: int) -> None:
    """At the shapes of GLM 5.3 Flash, whose latents have no rotated part."""
    rows, keys, top_k, pool = 64, 16384, 2048, 16

    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="cuda")

    with FakeTensorMode(), dry_run() as kernels:
        batch, blocks = batch_of(rows, keys, size), rows * keys // size
        index, weights = empty(blocks, size // pool, 128), empty(rows, 32, dtype=torch.float32)
        top_tokens(empty(rows, 32, 128), weights, index, batch, top_k=top_k // pool, ratio=pool)
        latents, chosen = empty(blocks, size, RANK), empty(rows, top_k + pool - 1, dtype=torch.int32)
        latent_attention(empty(rows, 64, RANK), latents, batch, rank=RANK, scale=0.1, chosen=chosen, pool=pool)
    assert [kernel.name for kernel in kernels][:3] == ["score_kernel", "select_kernel", "latent_kernel"]
    assert all(kernel.stack_bytes == 0 and kernel.shared_bytes <= 227 * 1024 for kernel in kernels)
    assert kernels[0].uses_tensor_cores
    assert kernels[2].uses_tensor_cores


def test_the_largest_candidate_of_the_tuner_fits() -> None:
    largest = max(candidates(V3), key=lambda config: (config["TILE"] * config.num_stages, config["BLOCK_M"]))
    assert compiled(V3, 64, 64, config=largest)[0].shared_bytes <= 227 * 1024
