import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stentor.kernels import AttentionBatch, latent_attention, tokens_of_pools, top_tokens
from stentor.kernels.sparse_index import choose
from stentor.tests.examples import examples
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal, thread_count
from stentor.tests.kernels.latents import Latents, Part, make_entries, make_latents

DTYPES = (torch.float32, torch.bfloat16)


def index(
    lengths: list[int], *, heads: int = 8, dim: int = 20, size: int = 16, dtype: torch.dtype = torch.float32
) -> tuple[Latents, list[Tensor]]:
    """An index of whole numbers, whose scores are exact in any order and often equal; and the heads' weights."""
    world = make_latents(lengths, heads=heads, rank=dim, rotated=0, size=size, dtype=dtype)
    world.cache.copy_(world.cache.float().mul(1.5).round().to(dtype))
    for queries in world.queries:
        queries.copy_(queries.float().round().to(dtype))
    return world, [normal(length, heads, seed=7 * s).round() for s, length in enumerate(lengths)]


def rows(choices: Tensor) -> list[list[int]]:
    return [[position for position in row if position >= 0] for row in choices.tolist()]


def test_the_reference_takes_the_largest_sums_of_weighted_relus_and_of_equal_ones_the_first() -> None:
    world, weights = index([60])
    (found,) = world.choose([(0, 0, 60)], weights, 7, "reference")
    for position in (0, 5, 6, 7, 33, 59):
        scores = []
        for key in world.kept[0].mul(1.5).round()[: position + 1]:
            products = [float(q @ key) for q in world.queries[0][position]]
            scores.append(sum(float(w) * max(p, 0.0) for w, p in zip(weights[0][position], products, strict=True)))
        best = sorted(range(position + 1), key=lambda key: (-scores[key], key))[:7]
        assert found[position].tolist() == [*sorted(best), *[-1] * (7 - len(best))]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "dim", "size", "top_k"), [(8, 20, 16, 24), (64, 128, 64, 50), (3, 5, 48, 1), (1, 32, 32, 129)]
)
def test_mixed_prefill_and_decode_is_the_reference(
    dtype: torch.dtype, heads: int, dim: int, size: int, top_k: int
) -> None:
    world, weights = index([1, 70, 200, 64, 130], heads=heads, dim=dim, size=size, dtype=dtype)
    parts = [(0, 0, 1), (1, 65, 70), (2, 150, 200), (3, 63, 64), (4, 0, 130)]
    assert choose(world.queries[0]) == "native"
    expected = world.choose(parts, weights, top_k, "reference")
    for native, reference in zip(world.choose(parts, weights, top_k), expected, strict=True):
        assert native.tolist() == reference.tolist()


def test_scores_that_are_no_whole_numbers_choose_the_same() -> None:
    world = make_latents([300], heads=16, rank=24, rotated=0)
    weights = [normal(300, 16, seed=3)]
    part = [(0, 0, 300)]
    (native,), (reference,) = (world.choose(part, weights, 40, variant) for variant in ("native", "reference"))
    assert native.tolist() == reference.tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("block", "ratio", "top_k"), [(32, 4, 9), (16, 5, 9), (16, 24, 2), (16, 16, 5)])
def test_entries_of_several_tokens_are_the_reference(block: int, ratio: int, top_k: int, dtype: torch.dtype) -> None:
    """Entries of 5 tokens do not fill blocks evenly, and those of 24 lie in the block of their last token."""
    world = make_entries(block, ratio, dtype, padding=False)
    found = {}
    for threads in (1, 3):
        with thread_count(threads):
            found[threads] = world.choose(top_k, "native").tolist()
    assert found[1] == found[3] == world.choose(top_k, "reference").tolist()
    assert [sum(entry >= 0 for entry in row) for row in found[1]] == [min(top_k, each) for each in world.complete]


def pooled(parts: list[Part], top_k: int, pool: int) -> list[Tensor]:
    """What the tokens of these parts attend to that choose every other pool of those that they see."""
    found = []
    for _, begin, end in parts:
        positions = torch.arange(begin, end)
        entries = torch.arange(top_k)[None] * torch.where(positions // pool >= 2 * top_k, 2, 1)[:, None]
        entries = entries.where(entries < ((positions + 1) // pool)[:, None], -1)
        found.append(tokens_of_pools(entries.int(), positions, pool))
    return found


def test_the_tokens_of_pools_are_those_of_chosen_ones_and_of_the_incomplete_one() -> None:
    positions = torch.tensor([0, 3, 4, 11, 13])
    entries = torch.tensor([[-1, -1], [0, -1], [0, -1], [0, 2], [0, 2]], dtype=torch.int32)
    assert rows(tokens_of_pools(entries, positions, 4)) == [
        [0],
        [0, 1, 2, 3],
        [0, 1, 2, 3, 4],
        [0, 1, 2, 3, 8, 9, 10, 11],
        [0, 1, 2, 3, 8, 9, 10, 11, 12, 13],
    ]
    assert tokens_of_pools(entries, positions, 4).shape == (5, 11)
    assert torch.equal(tokens_of_pools(entries, positions, 1), entries), "of one token each"


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_to_chosen_pools_and_the_incomplete_one_is_the_reference(dtype: torch.dtype) -> None:
    """Positions that are not chosen hold other numbers, which nothing may read."""
    world = make_latents([1, 70, 700], heads=33, rank=20, rotated=0, dtype=dtype)
    parts = [(0, 0, 1), (1, 10, 70), (2, 660, 700)]
    chosen = pooled(parts, top_k=3, pool=16)
    assert [len(row) for row in rows(chosen[2])] == [48 + seen % 16 for seen in range(661, 701)]
    expected = world.run(parts, "reference", chosen=chosen, pool=16)
    for native, reference in zip(world.run(parts, chosen=chosen, pool=16), expected, strict=True):
        assert_close(native, reference, 5e-6 if dtype == torch.float32 else None)
    (last,) = world.run([(2, 699, 700)], chosen=[chosen[2][-1:]], pool=16)
    left_out = set(range(700)) - set(chosen[2][-1].tolist())
    for position in left_out:
        world.cache[world.tables[2][position // 16], position % 16] = 1e3
    (after,) = world.run([(2, 699, 700)], chosen=[chosen[2][-1:]], pool=16)
    assert_same_bits(after, last)


@settings(max_examples=examples(20), deadline=None)
@given(data=st.data())
def test_a_choice_is_the_same_for_any_batch_chunking_and_thread_count(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(DTYPES))
    lengths = data.draw(st.lists(st.integers(1, 150), min_size=1, max_size=4))
    world = make_latents(lengths, heads=data.draw(st.sampled_from([2, 9])), rank=20, rotated=0, dtype=dtype)
    weights = [normal(length, world.queries[0].shape[1], seed=s) for s, length in enumerate(lengths)]
    top_k = data.draw(st.integers(1, 80))
    alone = [world.choose([(s, 0, n)], weights, top_k)[0] for s, n in enumerate(lengths)]
    begins = [data.draw(st.integers(0, n - 1)) for n in lengths]
    ends = [data.draw(st.integers(b + 1, n)) for b, n in zip(begins, lengths, strict=True)]
    parts: list[Part] = list(zip(range(len(lengths)), begins, ends, strict=True))
    with thread_count(data.draw(st.sampled_from([1, 2, 3]))):
        for (s, begin, end), found in zip(parts, world.choose(parts, weights, top_k), strict=True):
            assert found.tolist() == alone[s][begin:end].tolist()


def test_a_long_row_is_the_same_whether_it_is_scored_by_one_thread_or_by_several() -> None:
    world = make_latents([1300], heads=64, rank=64, rotated=0)
    weights = [normal(1300, 64, seed=3)]
    (whole,) = world.choose([(0, 1290, 1300)], weights, 600)
    assert len(set(whole[-1].tolist())) == 600
    for threads in (1, 2, 4):
        with thread_count(threads):
            (row,) = world.choose([(0, 1299, 1300)], weights, 600)
        assert row[0].tolist() == whole[-1].tolist()


def test_scores_that_are_no_numbers_choose_something_that_is_seen() -> None:
    world, weights = index([90])
    world.cache.fill_(float("nan"))
    (found,) = world.choose([(0, 0, 90)], weights, 16)
    for position, row in enumerate(rows(found)):
        assert row == sorted(set(row))
        assert len(row) == min(position + 1, 16)
        assert row[-1] <= position


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_to_what_is_chosen_is_the_reference(dtype: torch.dtype) -> None:
    lengths = [1, 70, 700]
    keys, weights = index(lengths, dtype=dtype)
    world = make_latents(lengths, heads=33, rank=20, rotated=4, dtype=dtype)
    parts = [(0, 0, 1), (1, 10, 70), (2, 690, 700)]
    for top_k in (1, 30, 530):
        chosen = keys.choose(parts, weights, top_k)
        expected = world.run(parts, "reference", chosen=chosen)
        for native, reference in zip(world.run(parts, chosen=chosen), expected, strict=True):
            assert_close(native, reference, 5e-6 if dtype == torch.float32 else None)


def test_nothing_but_what_is_chosen_is_seen() -> None:
    keys, weights = index([80])
    world = make_latents([80])
    part = [(0, 60, 80)]
    (chosen,) = keys.choose(part, weights, 12)
    (before,) = world.run(part, chosen=[chosen])
    left_out = sorted(set(range(80)) - {position for row in rows(chosen[-1:]) for position in row})
    for position in left_out:
        world.cache[world.tables[0][position // 16], position % 16] = 1e3
    (after,) = world.run(part, chosen=[chosen])
    assert_same_bits(after[-1], before[-1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_chosen_in_order_give_the_bits_of_no_choice(dtype: torch.dtype) -> None:
    world = make_latents([530, 20], heads=5, dtype=dtype)
    parts = [(0, 500, 530), (1, 0, 20)]
    every = [torch.arange(600, dtype=torch.int32).expand(end - begin, -1).contiguous() for _, begin, end in parts]
    for found, expected in zip(world.run(parts, chosen=every), world.run(parts), strict=True):
        assert_same_bits(found, expected)


@pytest.mark.parametrize("variant", ["native", "reference"])
def test_a_choice_of_what_is_not_seen_is_an_error(variant: str) -> None:
    world = make_latents([40])
    for wrong in (-1, 31):
        chosen = torch.tensor([[0, wrong]], dtype=torch.int32)
        with pytest.raises(IndexError, match="lead outside"):
            world.run([(0, 30, 31)], variant, chosen=[chosen])  # type: ignore[arg-type]


@pytest.mark.parametrize("variant", ["native", "reference"])
def test_a_table_that_leads_outside_the_index_is_an_error(variant: str) -> None:
    world, weights = index([40])
    world.tables[0][1] = len(world.cache)
    with pytest.raises(IndexError, match="outside"):
        world.choose([(0, 30, 40)], weights, 8, variant)  # type: ignore[arg-type]


def test_what_does_not_fit_is_refused() -> None:
    world, (weights,) = index([20])
    table = torch.tensor([world.tables[0]], dtype=torch.int32)
    batch = AttentionBatch(
        torch.tensor([0, 1], dtype=torch.int32),
        torch.tensor([20], dtype=torch.int32),
        table,
        torch.zeros(1, dtype=torch.int64),
        1,
        20,
    )
    q, weights = world.queries[0][:1], weights[:1]
    with pytest.raises(ValueError, match="does not fit cache"):
        top_tokens(q[..., :-1].contiguous(), weights, world.cache, batch, top_k=4)
    with pytest.raises(ValueError, match=r"weights .* must be contiguous float32"):
        top_tokens(q, weights.bfloat16(), world.cache, batch, top_k=4)
    with pytest.raises(ValueError, match="top_k is 0"):
        top_tokens(q, weights, world.cache, batch, top_k=0)
    with pytest.raises(ValueError, match="0 tokens of an entry"):
        top_tokens(q, weights, world.cache, batch, top_k=4, ratio=0)
    with pytest.raises(ValueError, match="does not fit cache"):
        top_tokens(q, weights, world.cache, batch, top_k=4, ratio=5, block=64)
    with pytest.raises(ValueError, match="the batch has 1"):
        top_tokens(world.queries[0], normal(20, 8, seed=1), world.cache, batch, top_k=4)
    with pytest.raises(ValueError, match="pools of 5 tokens"):
        world.run([(0, 19, 20)], chosen=[torch.zeros(1, 4, dtype=torch.int32)], pool=5)
    with pytest.raises(ValueError, match="pools of 4 tokens"):
        latent_attention(q, world.cache, batch, rank=20, scale=1.0, pool=4)
    with pytest.raises(ValueError, match=r"chosen .* must be contiguous int32"):
        world.run([(0, 19, 20)], chosen=[torch.zeros(1, 4)])
