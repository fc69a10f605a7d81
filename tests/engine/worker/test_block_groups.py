"""Which layers share block tables, and what a block is then."""

import pytest
import torch

from stentor.engine.model_config.spec.cache import CacheSpec
from stentor.engine.worker.caches import (
    BlockGroup,
    allocate_caches,
    block_groups_of,
    cache_tensors,
    check_index_blocks,
    choose_cache_dtype,
    kv_block_bytes,
    of_groups,
)
from stentor.engine.worker.errors import SetupError

CPU, BF16 = torch.device("cpu"), torch.bfloat16


def spec(*groups: tuple[int, int]) -> list[CacheSpec]:
    """(layers, window) of each group; numbers of layers go round the groups while these last."""
    left, layers = [count for count, _ in groups], [[] for _ in groups]  # type: list[int], list[list[int]]
    for number in range(sum(left)):
        turn = next(g for step in range(len(groups)) for g in [(number + step) % len(groups)] if left[g])
        layers[turn].append(number)
        left[turn] -= 1
    return [
        CacheSpec("window" if window else "full", tuple(of), window, 2, 16)
        for (_, window), of in zip(groups, layers, strict=True)
    ]


@pytest.mark.parametrize(
    ("groups", "longest", "sizes"),
    [
        ([(30, 0)], 8192, [(30, 0)]),
        ([(32, 4096)], 32768, [(32, 4096)]),
        ([(32, 4096)], 4096, [(32, 0)]),
        ([(12, 128), (12, 0)], 131072, [(12, 128), (12, 0)]),
        ([(52, 1024), (10, 0)], 131072, [*[(10, 1024)] * 5, (2, 1024), (10, 0)]),
        ([(15, 512), (3, 0)], 32768, [*[(3, 512)] * 5, (3, 0)]),
        ([(15, 512), (3, 0)], 512, [(18, 0)]),
        ([(1, 4096), (27, 0)], 32768, [(1, 4096), (9, 0), (9, 0), (9, 0)]),
    ],
)
def test_layers_are_cut_into_groups_of_about_one_size(
    groups: list[tuple[int, int]], longest: int, sizes: list[tuple[int, int]]
) -> None:
    found = block_groups_of(spec(*groups), longest)
    assert [(len(group.layers), group.window) for group in found] == sizes
    layers = sorted(layer for group in found for layer in group.layers)
    assert layers == list(range(sum(count for count, _ in groups))), "every layer once"


def test_layers_that_keep_more_of_a_token_than_others_are_one_group_that_keeps_all() -> None:
    wide = CacheSpec("full", (1,), 0, 4, 16)
    assert block_groups_of([CacheSpec("window", (0, 2), 8, 2, 16), wide], 100) == (BlockGroup((0, 1, 2), 0),)


def test_layers_of_several_groups_lie_in_the_same_tensors() -> None:
    groups = spec((4, 64), (2, 0))
    block_groups = block_groups_of(groups, 1000)
    caches = allocate_caches(groups, 5, 16, CPU, BF16, block_groups)
    assert [cache.group for cache in caches] == [0, 2, 0, 2, 1, 1]
    assert caches[0].k is caches[1].k is caches[4].k
    assert caches[2].v is caches[3].v is caches[5].v
    tensors = cache_tensors(caches)
    assert len(tensors) == 4
    assert sum(tensor.nbytes for tensor in tensors) == 5 * kv_block_bytes(groups, 16, BF16, block_groups)
    assert kv_block_bytes(groups, 16, BF16, block_groups) * 3 == kv_block_bytes(groups, 16, BF16)
    assert of_groups(block_groups) == ", for 3 groups of layers: 1 of all tokens, 2 of windows of 64"


def test_groups_are_named_to_the_operator_where_they_say_something() -> None:
    assert of_groups(()) == of_groups([BlockGroup((0, 1), 0)]) == ""
    assert of_groups([BlockGroup((0, 1), 512)]) == ", in a window of 512"


def test_keys_of_an_index_are_a_second_tensor_of_the_layers_that_have_one() -> None:
    groups = [CacheSpec("latent", (0, 2), 0, 1, 40, 16), CacheSpec("latent", (1,), 0, 1, 40)]
    block_groups = block_groups_of(groups, 1000)
    assert block_groups == (BlockGroup((0, 1, 2), 0),)
    caches = allocate_caches(groups, 5, 16, CPU, BF16, block_groups)
    assert [len(cache.tensors) for cache in caches] == [2, 1, 2]
    assert caches[2].index.shape == (5, 16, 16)
    assert {cache.latents.shape for cache in caches} == {(5, 16, 40)}
    size = kv_block_bytes(groups, 16, BF16, block_groups)
    assert size == 16 * 2 * (3 * 40 + 2 * 16)
    assert sum(tensor.nbytes for tensor in cache_tensors(caches)) == 5 * size


def test_a_latent_layer_has_one_tensor() -> None:
    groups = [CacheSpec("latent", (0, 1), 0, 1, 40)]
    assert block_groups_of(groups, 1000) == (BlockGroup((0, 1), 0),)
    caches = allocate_caches(groups, 5, 16, CPU, BF16)
    assert [cache.latents.shape for cache in caches] == [(5, 16, 40)] * 2
    assert sum(tensor.nbytes for tensor in cache_tensors(caches)) == 5 * kv_block_bytes(groups, 16, BF16)
    assert kv_block_bytes(groups, 16, BF16) == 2 * 16 * 40 * 2


def test_keys_of_an_index_lie_behind_keys_and_values_in_the_same_blocks() -> None:
    groups = [CacheSpec("full", (0,), 0, 2, 16), CacheSpec("full", (1,), 0, 2, 16, 24, index_block=32)]
    assert block_groups_of(groups, 100) == (BlockGroup((0, 1), 0),)
    plain, indexed = allocate_caches(groups, 5, 16, CPU, BF16)
    assert (len(plain.tensors), indexed.index.shape) == (2, (5, 16, 24))
    assert sum(tensor.nbytes for tensor in cache_tensors([plain, indexed])) == 5 * kv_block_bytes(groups, 16, BF16)


def test_a_cache_that_an_index_cannot_have_is_refused() -> None:
    groups = [CacheSpec("full", (0,), 0, 2, 16, 24, index_block=128)]
    check_index_blocks(64, groups)
    for size in (48, 256):
        with pytest.raises(SetupError, match=f"--block-size {size}: the model attends to blocks of 128 tokens"):
            check_index_blocks(size, groups)
    with pytest.raises(SetupError, match="--kv-cache-dtype int8: the model keeps keys of an index"):
        choose_cache_dtype("int8", BF16, CPU, groups)


def test_regions_with_a_key_each_may_be_parts_of_a_block() -> None:
    groups = [CacheSpec("full", (0,), 0, 2, 16, 24, index_block=8, index_every=8)]
    check_index_blocks(48, groups)
