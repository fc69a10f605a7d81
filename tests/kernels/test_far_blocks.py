"""Caches of more than 2^31 elements: blocks behind them are read and written as those in front are.

Only the pages that are used take memory.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from stentor.kernels import write_kv_
from stentor.tests.kernels.gpu import DEVICE
from stentor.tests.kernels.helpers import assert_same_bits, normal
from stentor.tests.kernels.latents import make_latents
from stentor.tests.kernels.paged_sequences import FP8, Step, make_step

pytestmark = pytest.mark.triton

ELEMENTS = (1 << 31) + (1 << 16)


def behind(cache: Tensor) -> tuple[Tensor, int]:
    """A cache that ends with the blocks of ``cache``, and how many blocks come before them."""
    before = -(-ELEMENTS // cache[0].numel())
    far = torch.empty((before + len(cache), *cache.shape[1:]), dtype=cache.dtype, device=DEVICE)
    far[before:] = cache
    return far, before


def moved(step: Step) -> Step:
    """The step over blocks far behind."""
    k, before = behind(step.k_cache.transpose(2, 3))
    v, _ = behind(step.v_cache)
    batch = step.batch
    tables = torch.where(batch.block_tables < 0, batch.block_tables, batch.block_tables + before)
    return replace(step, k_cache=k.transpose(2, 3), v_cache=v, batch=replace(batch, block_tables=tables))


@pytest.mark.parametrize(
    ("decode_rows", "ragged", "invariant"), [(3, False, False), (3, True, False), (0, False, False), (0, False, True)]
)
def test_attention_reads_far_blocks(decode_rows: int, ragged: bool, invariant: bool) -> None:
    sequences = [(33, 2 - ragged), (40, 2), (17, 2), (50, 20)]
    step = make_step(sequences, cache_dtype=FP8, dtype=torch.float16, decode_rows=decode_rows, decode_query_len=2)
    if ragged:
        step = replace(step, batch=replace(step.batch, ragged_tokens=5))
    assert_same_bits(moved(step).run(invariant=invariant), step.run(invariant=invariant))


def test_keys_and_values_are_written_to_far_blocks() -> None:
    shape = (2, 2, 16, 32)
    near = [torch.zeros(shape, dtype=torch.float16, device=DEVICE).to(FP8) for _ in "kv"]
    (far_k, before), (far_v, _) = (behind(cache) for cache in near)
    k, v = (normal(3, 2, 32, seed=seed, dtype=torch.float16).to(DEVICE) for seed in (1, 2))
    scale = torch.ones(2, device=DEVICE)
    slots = torch.tensor([0, 17, 31], device=DEVICE)
    write_kv_(k, v, near[0].transpose(2, 3), near[1], slots, k_scale=scale, v_scale=scale, variant="triton")
    far = far_k.transpose(2, 3), far_v, slots + before * 16
    write_kv_(k, v, *far, k_scale=scale, v_scale=scale, variant="triton")
    for found, expected in ((far_k, near[0]), (far_v, near[1])):
        assert_same_bits(found[before:].float(), expected.float())


def test_latents_are_read_from_far_blocks() -> None:
    near = make_latents([40, 20], dtype=torch.float16)
    cache, before = behind(near.cache.to(DEVICE))
    far = replace(near, cache=cache, tables=[[block + before for block in row] for row in near.tables])
    parts = [(0, 39, 40), (1, 10, 20)]
    for found, expected in zip(far.run(parts, "triton"), near.run(parts, "triton"), strict=True):
        assert_same_bits(found, expected)
