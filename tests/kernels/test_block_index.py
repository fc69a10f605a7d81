"""The choice of blocks of tokens, and attention to them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from stentor.kernels import BlockChoice, block_attention, make_kv_cache, seen_by, top_blocks, top_regions
from stentor.kernels.attention import AttentionBatch
from stentor.kernels.sparse_index import blocks as choosing
from stentor.kernels.variants import Choice
from stentor.tests.kernels.gpu import DEVICE, TRITON_FLOATS
from stentor.tests.kernels.helpers import assert_close, normal
from stentor.tests.kernels.latents import Latents, make_latents

LENGTHS = [1, 150, 70, 64]
PARTS = [(0, 0, 1), (1, 100, 150), (2, 69, 70), (3, 20, 64)]
KV_HEADS, GROUP, DIM = 2, 3, 32


def world_of(size: int = 16, dtype: torch.dtype = torch.float32) -> Latents:
    return make_latents(LENGTHS, heads=KV_HEADS, rank=20, rotated=0, size=size, dtype=dtype)


def chosen_in(world: Latents, choice: BlockChoice, variant: Choice, padding: int = 0) -> Tensor:
    """Of all parts, int64 [tokens, heads, top_k] on the CPU, without those of padding."""
    batch, counts = world.batch(PARTS, padding)
    q = world.rows(world.queries, PARTS, padding)
    found = top_blocks(q, world.cache.to(DEVICE), batch, seen_by(batch), choice, variant=variant).cpu()
    return found[padding : padding + sum(counts[padding : padding + len(PARTS)])]


@pytest.mark.parametrize("choice", [BlockChoice(16, 3), BlockChoice(32, 2), BlockChoice(16, 4, 2), BlockChoice(16, 99)])
def test_a_token_sees_the_blocks_with_the_best_keys_and_the_last_ones(choice: BlockChoice) -> None:
    world = world_of()
    rows = iter(chosen_in(world, choice, "reference"))
    for s, begin, end in PARTS:
        for position in range(begin, end):
            row = next(rows).tolist()
            for q, blocks in zip(world.queries[s][position], row, strict=True):
                parts = (world.kept[s][: position + 1] @ q).split(choice.size)
                scores = torch.stack([part.max() for part in parts])
                scores[-choice.local :] = torch.inf
                best = scores.topk(min(choice.top_k, len(parts))).indices.sort().values.tolist()
                assert blocks[: len(best)] == best
                assert all(block >= -(-max(LENGTHS) // choice.size) for block in blocks[len(best) :])


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize(
    ("size", "choice"), [(16, BlockChoice(16, 3)), (32, BlockChoice(64, 2)), (16, BlockChoice(48, 2))]
)
def test_the_kernel_chooses_as_the_reference_also_in_turns(
    size: int, choice: BlockChoice, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of(size, dtype)
    expected = chosen_in(world, choice, "reference")
    assert choosing.choose_blocks_variant(world.queries[0].to(DEVICE), "triton") == "triton"
    assert chosen_in(world, choice, "triton", padding=2).tolist() == expected.tolist()
    monkeypatch.setattr(choosing, "SCORES_BYTES", 4 * KV_HEADS * 10 * 7)
    assert chosen_in(world, choice, "triton").tolist() == expected.tolist()


def regions_in(batch: AttentionBatch, choice: BlockChoice, variant: Choice = "auto") -> tuple[Tensor, Tensor]:
    """The regions of all parts, int64 [tokens, heads, top_k], and those that a sum over heads prefers, one by one."""
    heads, size = 2 * KV_HEADS, 16
    table, seen = batch.block_tables.cpu().long(), seen_by(batch)
    q, weights = normal(batch.num_tokens, heads, DIM, seed=4), normal(batch.num_tokens, heads, seed=5)
    cache = normal(int(table.max()) + 1, size // choice.size, DIM, seed=6)
    given = q.to(DEVICE), weights.to(DEVICE), cache.to(DEVICE)
    found = top_regions(*given, batch, seen, choice, groups=KV_HEADS, block=size, variant=variant).cpu()
    expected = torch.full_like(found, -(-batch.max_seq_len // choice.size))
    for token, (row, count) in enumerate(zip(seen.rows.tolist(), seen.counts.tolist(), strict=True)):
        own = (count - 1) // choice.size
        keys = cache[table[row]].flatten(0, 1)[:own]
        for head in range(KV_HEADS):
            of = slice(2 * head, 2 * head + 2)
            scores = (weights[token, of, None] * torch.relu(q[token, of] @ keys.T)).sum(0)
            best = scores.sort(descending=True, stable=True).indices[: choice.top_k - 1].sort().values.tolist()
            expected[token, head, : len(best) + 1] = torch.tensor([*best, own])
    return found, expected


def attended(choice: BlockChoice, variant: Choice, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Attention to random blocks with the variant, and by a mask."""
    size = 16
    world = world_of(size)
    batch, _ = world.batch(PARTS, 0)
    seen, tokens = seen_by(batch), batch.num_tokens
    chosen = regions_in(batch, choice)[0] if choice.size < size else chosen_in(world, choice, "reference")
    k, v = make_kv_cache(len(world.cache), KV_HEADS, DIM, size, dtype, DEVICE)
    k.copy_(normal(*k.shape, seed=1, dtype=dtype))
    v.copy_(normal(*v.shape, seed=2, dtype=dtype))
    q = normal(tokens, KV_HEADS * GROUP, DIM, seed=3, dtype=dtype)
    found = block_attention(q.to(DEVICE), k, v, batch, seen, chosen.to(DEVICE), choice, scale=0.3, variant=variant)
    expected = torch.empty_like(q, dtype=torch.float32)
    for token, (row, count) in enumerate(zip(seen.rows.tolist(), seen.counts.tolist(), strict=True)):
        table = batch.block_tables[row, : -(-count // size)].long().cpu()
        keys = k.cpu().float()[table].permute(1, 0, 3, 2).flatten(1, 2)[:, :count]  # [kv heads, count, dim]
        values = v.cpu().float()[table].transpose(0, 1).flatten(1, 2)[:, :count]
        for head in range(KV_HEADS):
            hidden = ~torch.isin(torch.arange(count) // choice.size, chosen[token, head])
            own = slice(head * GROUP, (head + 1) * GROUP)
            scores = (q[token, own].float() @ keys[head].T * 0.3).masked_fill(hidden, -torch.inf)
            expected[token, own] = scores.softmax(1) @ values[head]
    return found.cpu().float(), expected


@pytest.mark.parametrize("variant", ["reference", "native"])
@pytest.mark.parametrize("choice", [BlockChoice(16, 3), BlockChoice(32, 2), BlockChoice(8, 4), BlockChoice(4, 7)])
def test_attention_to_chosen_blocks_is_attention_with_a_mask(choice: BlockChoice, variant: Any) -> None:
    assert_close(*attended(choice, variant), 1e-5)


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
def test_the_kernel_attends_to_chosen_blocks_alone(dtype: torch.dtype) -> None:
    assert_close(*attended(BlockChoice(32, 2), "triton", dtype), 1e-4 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize("variant", ["reference", "native"])
@pytest.mark.parametrize("choice", [BlockChoice(8, 4), BlockChoice(16, 3), BlockChoice(8, 99)])
def test_a_token_sees_its_own_region_and_the_best_ones_before_it(choice: BlockChoice, variant: Any) -> None:
    found, expected = regions_in(world_of().batch(PARTS, 0)[0], choice, variant)
    assert found.tolist() == expected.tolist()


@pytest.mark.triton
def test_the_kernel_chooses_regions_as_sums_over_heads_do() -> None:
    found, expected = regions_in(world_of().batch(PARTS, 0)[0], BlockChoice(8, 4), "triton")
    assert found.tolist() == expected.tolist()


def test_copies_of_regions_do_not_depend_on_how_many_tokens_are_copied_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    together = attended(BlockChoice(8, 4), "native")[0]
    monkeypatch.setattr(choosing, "_COPIED_BYTES", 1)
    assert torch.equal(attended(BlockChoice(8, 4), "native")[0], together)


def test_blocks_that_the_cache_does_not_divide_are_refused() -> None:
    world = world_of(32)
    with pytest.raises(ValueError, match="blocks of 48 tokens do not divide into those of"):
        chosen_in(world, BlockChoice(48, 2), "reference")
    with pytest.raises(ValueError, match="3 blocks are always among the 2 chosen"):
        chosen_in(world, BlockChoice(32, 2, 3), "reference")
    with pytest.raises(ValueError, match=r"local=2\) with 4 heads in 2 groups is not known"):
        regions_in(world.batch(PARTS, 0)[0], BlockChoice(8, 3, 2))
