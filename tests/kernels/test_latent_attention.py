import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.kernels import AttentionBatch, latent_attention, latent_cache_shape, latents_of, write_latents_
from stentor.kernels.latent_attention import choose
from stentor.tests.examples import examples
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, thread_count
from stentor.tests.kernels.latents import make_latents

DTYPES = (torch.float32, torch.bfloat16)


def test_the_reference_is_attention_to_the_keys_and_values_that_latents_stand_for() -> None:
    """With random matrices in place of trained ones: scores of whole keys are those of absorbed queries."""
    heads, rank, rotated, nope, v_dim, length = 3, 16, 4, 8, 6, 21
    world = make_latents([length], heads=heads, rank=rank, rotated=rotated)
    generator = torch.Generator().manual_seed(5)
    keys_of, values_of = (
        torch.randn(heads, nope, rank, generator=generator),
        torch.randn(heads, v_dim, rank, generator=generator),
    )
    latent, shared = world.kept[0].split([rank, rotated], dim=1)
    q, q_rotated = torch.randn(length, heads, nope, generator=generator), world.queries[0][..., rank:]
    keys = torch.cat([torch.einsum("hnr,lr->lhn", keys_of, latent), shared.unsqueeze(1).expand(-1, heads, -1)], dim=2)
    expected = torch.nn.functional.scaled_dot_product_attention(
        torch.cat([q, q_rotated], dim=2).transpose(0, 1),
        keys.transpose(0, 1),
        torch.einsum("hvr,lr->hlv", values_of, latent),
        is_causal=True,
        scale=world.scale,
    )
    world.queries[0][:] = torch.cat([torch.einsum("lhn,hnr->lhr", q, keys_of), q_rotated], dim=2)
    (found,) = world.run([(0, 0, length)], "reference")
    assert_close(torch.einsum("lhr,hvr->hlv", found, values_of), expected, 1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "rank", "rotated", "size"),
    [
        (4, 32, 8, 16),
        (16, 512, 64, 64),
        (40, 48, 16, 32),
        (3, 20, 6, 48),
        (1, 5, 2, 16),
        (16, 512, 0, 64),
        (3, 20, 0, 16),
    ],
)
def test_mixed_prefill_and_decode_is_the_reference(
    dtype: torch.dtype, heads: int, rank: int, rotated: int, size: int
) -> None:
    world = make_latents([1, 70, 200, 64, 130], heads=heads, rank=rank, rotated=rotated, size=size, dtype=dtype)
    parts = [(0, 0, 1), (1, 65, 70), (2, 150, 200), (3, 63, 64), (4, 0, 130)]
    assert choose(world.queries[0]) == "native"
    for native, reference in zip(world.run(parts), world.run(parts, "reference"), strict=True):
        assert_close(native, reference, 5e-6 if dtype == torch.float32 else None)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sinks_take_part_in_the_softmax_without_a_value(dtype: torch.dtype) -> None:
    """Also ones that leave nothing to all others, and ones that change nothing; with rows of several parts."""
    world = make_latents([1, 70, 1300], heads=5, rank=32, rotated=16, dtype=dtype)
    parts = [(0, 0, 1), (1, 60, 70), (2, 1299, 1300)]
    sinks = torch.tensor([-200.0, -1.0, 2.0, 8.0, 300.0])
    plain = world.run(parts)
    for native, reference, without in zip(
        world.run(parts, sinks=sinks), world.run(parts, "reference", sinks=sinks), plain, strict=True
    ):
        assert_close(native, reference, 5e-6 if dtype == torch.float32 else None)
        assert_same_bits(native[:, 0], without[:, 0])
        assert native[:, 4].abs().max() < 1e-30


@settings(max_examples=examples(20), deadline=None)
@given(data=st.data())
def test_a_row_is_bitwise_the_same_for_any_batch_chunking_and_thread_count(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(DTYPES))
    lengths = data.draw(st.lists(st.integers(1, 150), min_size=1, max_size=4))
    world = make_latents(lengths, heads=data.draw(st.sampled_from([2, 5])), rank=20, rotated=4, dtype=dtype)
    alone = [torch.cat([world.run([(s, p, p + 1)])[0] for p in range(n)]) for s, n in enumerate(lengths)]
    begins = [data.draw(st.integers(0, n - 1)) for n in lengths]
    ends = [data.draw(st.integers(b + 1, n)) for b, n in zip(begins, lengths, strict=True)]
    parts = list(zip(range(len(lengths)), begins, ends, strict=True))
    with thread_count(data.draw(st.sampled_from([1, 2, 3]))):
        for (s, begin, end), out in zip(parts, world.run(parts), strict=True):
            assert_same_bits(out, alone[s][begin:end])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_long_row_is_bitwise_the_same_whether_its_parts_are_computed_by_one_thread_or_by_several(
    dtype: torch.dtype,
) -> None:
    world = make_latents([1300], heads=33, rank=64, rotated=16, dtype=dtype)
    (whole,) = world.run([(0, 1024, 1300)])
    for position in (1024, 1040, 1299):
        for threads in (1, 2, 4):
            with thread_count(threads):
                (row,) = world.run([(0, position, position + 1)])
            assert_same_bits(row[0], whole[position - 1024])
    (reference,) = world.run([(0, 1299, 1300)], "reference")
    assert_close(whole[-1:], reference, 5e-6 if dtype == torch.float32 else None)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_block_size_does_not_show(dtype: torch.dtype) -> None:
    results = [make_latents([150], size=size, dtype=dtype).run([(0, 0, 150)])[0] for size in (16, 32, 48, 160)]
    for other in results[1:]:
        assert_same_bits(other, results[0])


@pytest.mark.parametrize("variant", ["native", "reference"])
def test_a_table_that_leads_outside_the_cache_is_an_error(variant: str) -> None:
    world = make_latents([40])
    world.tables[0][1] = len(world.cache)
    with pytest.raises(IndexError, match="outside"):
        world.run([(0, 30, 40)], variant)  # type: ignore[arg-type]


def test_latents_of_a_sequence_are_what_was_written() -> None:
    world = make_latents([40, 9], size=16)
    for kept, table in zip(world.kept, world.tables, strict=True):
        assert torch.equal(latents_of(world.cache, torch.tensor(table, dtype=torch.int32), len(kept)), kept)


def test_what_does_not_fit_is_refused() -> None:
    world = make_latents([20])
    batch = AttentionBatch(
        torch.tensor([0, 1], dtype=torch.int32),
        torch.tensor([20], dtype=torch.int32),
        torch.tensor([world.tables[0]], dtype=torch.int32),
        torch.zeros(1, dtype=torch.int64),
        1,
        20,
    )
    q = world.queries[0][:1]
    with pytest.raises(ValueError, match="does not fit cache"):
        latent_attention(q[..., :-1].contiguous(), world.cache, batch, rank=32, scale=1.0)
    with pytest.raises(ValueError, match="the batch has 1"):
        latent_attention(world.queries[0], world.cache, batch, rank=32, scale=1.0)
    with pytest.raises(ValueError, match=r"sinks .* must be contiguous float32"):
        latent_attention(q, world.cache, batch, rank=32, scale=1.0, sinks=torch.zeros(1 + q.shape[1]))
    with pytest.raises(ValueError, match="rank 41"):
        latent_attention(q, world.cache, batch, rank=41, scale=1.0)
    with pytest.raises(ValueError, match="multiple of 16"):
        latent_cache_shape(3, 40, 24)
    with pytest.raises(ValueError, match="do not fit cache"):
        write_latents_(torch.zeros(1, 3), world.cache, batch.slots)
