from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stentor.kernels import AttentionBatch, kv_cache_shape, paged_attention, write_kv_
from stentor.kernels.attention import choose
from stentor.kernels.native.processor import multiplies_bfloat16
from stentor.tests.examples import examples
from stentor.tests.kernels.helpers import TOLERANCE, assert_close, assert_same_bits, normal, thread_count

DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class World:
    """Sequences whose keys lie in a shuffled cache; unwritten slots hold NaN, or have scales that are NaN."""

    queries: list[Tensor]
    """One per sequence, a query for every position: [length, heads, dim]."""
    k_cache: Tensor
    v_cache: Tensor
    tables: list[list[int]]
    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: Tensor | None = None
    slopes: Tensor | None = None
    distances: Tensor | None = None
    """[heads, E], of all queries; or [sequences, positions, heads, E]."""
    chunk: int = 0
    scales: tuple[Tensor, Tensor] | tuple[None, None] = (None, None)
    """Of int8 or float8 keys and values."""

    def run(self, parts: list[tuple[int, int, int]], variant: str = "native") -> list[Tensor]:
        """Attends positions [begin, end) of sequences, given as (sequence, begin, end), in one batch."""
        q, batch = self.batch(parts)
        k_cache, v_cache = self.k_cache, self.v_cache
        k_scale, v_scale = self.scales
        if variant == "reference":  # it multiplies hidden keys by zero
            k_cache, v_cache = (each.float().nan_to_num().to(each.dtype) for each in (k_cache, v_cache))
            k_scale, v_scale = (each if each is None else each.nan_to_num() for each in (k_scale, v_scale))
        distances = self.distances
        if distances is not None and distances.dim() > 2:
            distances = torch.cat([distances[sequence, begin:end] for sequence, begin, end in parts])
        out = paged_attention(
            q,
            k_cache,
            v_cache,
            batch,
            scale=self.scale,
            window=self.window,
            chunk=self.chunk,
            softcap=self.softcap,
            sinks=self.sinks,
            slopes=self.slopes,
            distances=distances,
            k_scale=k_scale,
            v_scale=v_scale,
            variant=variant,  # type: ignore[arg-type]
        )
        return list(out.split([end - begin for _, begin, end in parts]))

    def batch(self, parts: list[tuple[int, int, int]]) -> tuple[Tensor, AttentionBatch]:
        size = self.k_cache.shape[3]
        counts = [end - begin for _, begin, end in parts]
        width = max(len(self.tables[s]) for s, _, _ in parts)
        tables = torch.full((len(parts), width), -9, dtype=torch.int32)  # unused entries lead nowhere
        for row, (s, _, end) in enumerate(parts):
            used = -(-end // size)
            tables[row, :used] = torch.tensor(self.tables[s][:used], dtype=torch.int32)
        starts = torch.tensor([0, *counts]).cumsum(0).int()
        lengths = torch.tensor([end for _, _, end in parts], dtype=torch.int32)
        slots = torch.cat(
            [torch.tensor([self.tables[s][p // size] * size + p % size for p in range(b, e)]) for s, b, e in parts]
        ).long()
        q = torch.cat([self.queries[s][begin:end] for s, begin, end in parts])
        return q, AttentionBatch(starts, lengths, tables, slots, max(counts), int(lengths.max()))


def make_world(
    lengths: list[int],
    *,
    heads: int = 6,
    kv_heads: int = 2,
    dim: int = 32,
    size: int = 16,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    seed: int = 0,
) -> World:
    blocks = sum(-(-length // size) for length in lengths) + 2
    free = torch.randperm(blocks, generator=torch.Generator().manual_seed(seed)).tolist()
    shapes = kv_cache_shape(blocks, kv_heads, dim, size)
    scales: tuple[Tensor, Tensor] | tuple[None, None] = None, None
    if cache_dtype == torch.int8:
        k_cache, v_cache = (torch.full(shape, 99, dtype=cache_dtype) for shape in shapes)
        scales = torch.full((blocks, kv_heads, size), torch.nan), torch.full((blocks, kv_heads, size), torch.nan)
    else:
        k_cache, v_cache = (torch.zeros(shape).add(torch.nan).to(cache_dtype or dtype) for shape in shapes)
    if cache_dtype == torch.float8_e4m3fn:
        scales = 2.0 ** torch.linspace(-6, -7, kv_heads), 2.0 ** torch.linspace(-7, -6, kv_heads)
    queries, tables = [], []
    for s, length in enumerate(lengths):
        table = [free.pop() for _ in range(-(-length // size))]
        slots = torch.tensor([table[p // size] * size + p % size for p in range(length)])
        k, v = (normal(length, kv_heads, dim, seed=seed + 10 * s + part, dtype=dtype) for part in (1, 2))
        write_kv_(k, v, k_cache, v_cache, slots, k_scale=scales[0], v_scale=scales[1])
        queries.append(normal(length, heads, dim, seed=seed + 10 * s + 3, dtype=dtype))
        tables.append(table)
    return World(queries, k_cache, v_cache, tables, dim**-0.5, window, softcap, sinks, scales=scales)


SLOPES = torch.tensor([0.5, 0.0, 0.25, 0.01, 1.0, 0.125])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "size", "window", "softcap"),
    [
        (9, 3, 64, 32, 0, 0.0),
        (4, 4, 80, 16, 0, 0.0),
        (8, 1, 128, 16, 7, 0.0),
        (8, 2, 256, 64, 100, 30.0),
        (5, 5, 24, 48, 0, 0.0),
        (40, 1, 8, 16, 1, 5.0),
        (3, 1, 5, 16, 64, 0.0),
    ],
)
def test_mixed_prefill_and_decode_is_the_reference(
    dtype: torch.dtype, heads: int, kv_heads: int, dim: int, size: int, window: int, softcap: float
) -> None:
    world = make_world(
        [1, 70, 200, 64, 130],
        heads=heads,
        kv_heads=kv_heads,
        dim=dim,
        size=size,
        dtype=dtype,
        window=window,
        softcap=softcap,
    )
    parts = [(0, 0, 1), (1, 65, 70), (2, 100, 200), (3, 63, 64), (4, 0, 130)]
    assert choose(world.queries[0], world.k_cache) == "native"
    for native, reference in zip(world.run(parts), world.run(parts, "reference"), strict=True):
        assert_close(native, reference, 5e-6 if dtype == torch.float32 else None)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", ["native", "reference"])
@pytest.mark.parametrize("softcap", [0.0, 3.0])
def test_attention_to_two_parts_of_the_keys_is_joined_by_sums_of_exponentials(
    dtype: torch.dtype, variant: str, softcap: float
) -> None:
    world = make_world([704], dtype=dtype)
    q, table = world.queries[0][-1:], torch.tensor(world.tables, dtype=torch.int32)

    def attended(first: int, end: int) -> tuple[Tensor, Tensor]:
        blocks = table[:, first // 16 : end // 16].contiguous()
        starts, lengths = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([end - first], dtype=torch.int32)
        batch = AttentionBatch(starts, lengths, blocks, torch.zeros(1).long(), 1, end - first)
        sums = torch.full((1, 6), torch.nan)
        options: dict[str, Any] = {"scale": world.scale, "softcap": softcap, "variant": variant}
        return paged_attention(q, world.k_cache, world.v_cache, batch, logsums=sums, **options).float(), sums

    (near, ours), (far, theirs), (whole, sums) = attended(0, 320), attended(320, 704), attended(0, 704)
    torch.testing.assert_close(torch.logaddexp(ours, theirs), sums, atol=1e-3, rtol=1e-3)
    joined = torch.lerp(far, near, torch.sigmoid(ours - theirs)[..., None])
    torch.testing.assert_close(joined, whole, atol=1e-5 if dtype == torch.float32 else 1e-2, rtol=1e-2)
    k = world.k_cache.float()[table[0].long()].permute(1, 0, 3, 2).reshape(2, 704, 32)
    scores = torch.einsum("ghd,gkd->ghk", q.float().view(2, 3, 32), k) * world.scale
    scores = torch.tanh(scores / softcap) * softcap if softcap else scores
    torch.testing.assert_close(sums.view(2, 3), torch.logsumexp(scores, -1), atol=1e-3, rtol=1e-3)


def test_the_reference_is_attention_as_written() -> None:
    world = make_world([37], window=11, softcap=4.0)
    (out,) = world.run([(0, 0, 37)], "reference")
    size, position, head = 16, 29, 4
    table = world.tables[0]
    scores = []
    visible = range(position - 10, position + 1)
    for key in visible:
        column = world.k_cache[table[key // size], head // 3, :, key % size]
        score = float(world.queries[0][position, head] @ column) * world.scale
        scores.append(4.0 * torch.tanh(torch.tensor(score / 4.0)))
    weights = torch.softmax(torch.stack(scores), 0)
    values = torch.stack([world.v_cache[table[key // size], head // 3, key % size] for key in visible])
    assert_close(out[position, head], weights @ values, 1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chunk", [1, 16, 50, 64, 1000])
def test_tokens_see_their_chunk_alone(dtype: torch.dtype, chunk: int) -> None:
    world = replace(make_world([1, 70, 200, 64, 700], dtype=dtype), chunk=chunk)
    parts = [(0, 0, 1), (1, 65, 70), (2, 100, 200), (3, 63, 64), (4, 0, 700)]
    expected = world.run(parts, "reference")
    for native, reference in zip(world.run(parts), expected, strict=True):
        assert_close(native, reference, 5e-6 if dtype == torch.float32 else None)
    windowed = replace(world, chunk=0, window=199 % chunk + 1).run([(2, 199, 200)], "reference")
    assert_close(expected[2][-1:], windowed[0], 5e-6 if dtype == torch.float32 else None)


@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_a_row_is_bitwise_the_same_for_any_batch_chunking_and_thread_count(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(DTYPES))
    lengths = data.draw(st.lists(st.integers(1, 200), min_size=1, max_size=4))
    heads = data.draw(st.sampled_from([2, 6]))
    window, chunk = data.draw(st.sampled_from([(0, 0), (1, 0), (50, 0), (0, 50)]))
    world = make_world(
        lengths,
        heads=heads,
        dim=data.draw(st.sampled_from([20, 64])),
        window=window,
        softcap=data.draw(st.sampled_from([0.0, 3.0])),
        sinks=data.draw(st.sampled_from([None, torch.linspace(-4, 9, heads)])),
        dtype=dtype,
    )
    world = replace(world, chunk=chunk)
    alone = [torch.cat([world.run([(s, p, p + 1)])[0] for p in range(n)]) for s, n in enumerate(lengths)]
    begins = [data.draw(st.integers(0, n - 1)) for n in lengths]
    ends = [data.draw(st.integers(b + 1, n)) for b, n in zip(begins, lengths, strict=True)]
    parts = list(zip(range(len(lengths)), begins, ends, strict=True))
    with thread_count(data.draw(st.sampled_from([1, 2, 3]))):
        for (s, begin, end), out in zip(parts, world.run(parts), strict=True):
            assert_same_bits(out, alone[s][begin:end])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "dim", "size", "window", "softcap"),
    [(3, 64, 16, 0, 0.0), (1, 32, 64, 0, 0.0), (2, 96, 48, 75, 0.0), (5, 24, 16, 0, 2.0), (9, 32, 16, 0, 2.0)],
)
def test_a_row_alone_is_bitwise_the_row_among_hundreds(
    dtype: torch.dtype, heads: int, dim: int, size: int, window: int, softcap: float
) -> None:
    world = make_world([700], heads=heads, kv_heads=1, dim=dim, size=size, dtype=dtype, window=window, softcap=softcap)
    (whole,) = world.run([(0, 0, 700)])
    for begin, end in [(p, p + 1) for p in (0, 1, 15, 16, 63, 64, 300, 511, 512, 699)] + [(30, 35), (505, 516)]:
        assert_same_bits(world.run([(0, begin, end)])[0], whole[begin:end])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cache_dtype", [None, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize(("dim", "window", "softcap"), [(64, 0, 0.0), (32, 90, 0.0), (24, 0, 5.0)])
def test_slopes_lower_scores_by_distance(
    dtype: torch.dtype, cache_dtype: torch.dtype | None, dim: int, window: int, softcap: float
) -> None:
    shape: dict[str, Any] = {"dim": dim, "dtype": dtype, "cache_dtype": cache_dtype}
    plain = make_world([600, 5], window=window, softcap=softcap, **shape)
    world = replace(plain, slopes=SLOPES)
    parts = [(0, 0, 600), (1, 0, 5)]
    found, expected, without = world.run(parts), world.run(parts, "reference"), plain.run(parts)
    # codes of float8 meet queries as bfloat16 where the processor multiplies pairs of that
    exact = dtype == torch.float32 and not (cache_dtype == torch.float8_e4m3fn and multiplies_bfloat16())
    tolerance = 2e-4 if exact else TOLERANCE[torch.bfloat16]  # an origin is as far from scores as a tile is long
    for native, reference, flat in zip(found, expected, without, strict=True):
        assert_close(native, reference, tolerance)
        assert_same_bits(native[:, 1], flat[:, 1])  # a slope of 0
        assert (native[3:, 0].float() - flat[3:, 0].float()).abs().max() > 0.05
    for position in (0, 63, 511, 512, 599):
        assert_same_bits(world.run([(0, position, position + 1)])[0], found[0][position : position + 1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cache_dtype", [None, torch.int8])
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(("dim", "extent", "softcap"), [(64, 129, 0.0), (24, 1, 5.0), (32, 1000, 0.0)])
def test_numbers_by_distance_are_added_to_scores(
    dtype: torch.dtype, cache_dtype: torch.dtype | None, own: bool, dim: int, extent: int, softcap: float
) -> None:
    plain = make_world([600, 5], dim=dim, dtype=dtype, cache_dtype=cache_dtype, softcap=softcap)
    numbers = 2 * (normal(2, 600, 6, extent, seed=7) if own else normal(6, extent, seed=7))
    numbers[..., 1, :] = 0
    world = replace(plain, distances=numbers)
    parts = [(0, 0, 600), (1, 0, 5)]
    found, expected, without = world.run(parts), world.run(parts, "reference"), plain.run(parts)
    tolerance = 2e-4 if dtype == torch.float32 else TOLERANCE[torch.bfloat16]
    for native, reference, flat in zip(found, expected, without, strict=True):
        assert_close(native, reference, tolerance)
        assert_close(native[:, 1], flat[:, 1], tolerance)
        if extent > 1:  # one number for all keys changes no weight
            assert (native[3:, 0].float() - flat[3:, 0].float()).abs().max() > 0.05
    for position in (0, 63, 511, 512, 599):
        assert_same_bits(world.run([(0, position, position + 1)])[0], found[0][position : position + 1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dim", "window", "softcap"), [(64, 0, 0.0), (32, 600, 0.0), (24, 0, 5.0)])
def test_a_sink_counts_once_however_many_parts_a_row_has(
    dtype: torch.dtype, dim: int, window: int, softcap: float
) -> None:
    sinks = torch.tensor([float("-inf"), -1.0, 0.5, 6.0, 30.0, 300.0])
    world = make_world([700, 5], dim=dim, dtype=dtype, window=window, softcap=softcap, sinks=sinks)
    parts = [(0, 0, 700), (1, 0, 5)]
    found, expected, plain = world.run(parts), world.run(parts, "reference"), replace(world, sinks=None).run(parts)
    for native, reference, without in zip(found, expected, plain, strict=True):
        assert_close(native, reference, 5e-6 if dtype == torch.float32 else None)
        assert_same_bits(native[:, 0], without[:, 0])  # a sink without weight
        assert native[:, 5].float().abs().max() < 1e-30  # all weight goes to its sink
    for position in (0, 63, 511, 512, 699):
        assert_same_bits(world.run([(0, position, position + 1)])[0], found[0][position : position + 1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("step", [-3.0, 0.05, 0.086, 0.087, 0.3, 3.0])
def test_scores_may_climb_from_tile_to_tile(dtype: torch.dtype, step: float) -> None:
    """By less than weights may grow before sums are brought to a new scale, and by more."""
    world = make_world([300], heads=1, kv_heads=1, dtype=dtype)
    climb = (torch.arange(300.0) * step / 32).to(dtype)
    for position, key in enumerate(climb):
        world.k_cache[world.tables[0][position // 16], 0, :, position % 16] = key
    ones = torch.ones(300, 1, 32, dtype=dtype)
    world = replace(world, queries=[ones], scale=1.0)
    (native,), (reference,) = world.run([(0, 0, 300)]), world.run([(0, 0, 300)], "reference")
    assert_close(native, reference, 1e-4 if dtype == torch.float32 else 3e-2)
    assert_same_bits(torch.cat([world.run([(0, p, p + 1)])[0] for p in range(250, 300)]), native[250:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_block_size_does_not_show(dtype: torch.dtype) -> None:
    results = [make_world([150], size=size, dtype=dtype).run([(0, 0, 150)])[0] for size in (16, 32, 48, 160)]
    for other in results[1:]:
        assert_same_bits(other, results[0])


def test_queries_may_be_a_slice_of_a_fused_projection_and_a_sequence_may_bring_none() -> None:
    world = make_world([40, 20])
    q, batch = world.batch([(0, 30, 40), (1, 20, 20), (1, 5, 20)])
    fused = torch.cat([q.flatten(1), torch.ones(25, 64)], dim=1)
    out = paged_attention(fused[:, :192].view(25, 6, 32), world.k_cache, world.v_cache, batch, scale=world.scale)
    alone = torch.cat([*world.run([(0, 30, 40)]), *world.run([(1, 5, 20)])])
    assert_same_bits(out, alone)


@pytest.mark.parametrize("variant", ["native", "reference"])
def test_blocks_behind_the_window_may_be_gone(variant: str) -> None:
    world = replace(make_world([100], window=20), k_cache=make_world([100]).k_cache.nan_to_num())
    world = replace(world, v_cache=world.v_cache.nan_to_num())
    (whole,) = world.run([(0, 90, 100)], variant)
    q, batch = world.batch([(0, 90, 100)])
    batch.block_tables[0, :4] = -1  # keys 0 to 63; the first query sees 71 to 90
    out = paged_attention(
        q,
        world.k_cache,
        world.v_cache,
        batch,
        scale=world.scale,
        window=20,
        variant=variant,  # type: ignore[arg-type]
    )
    assert_same_bits(out, whole)


def test_large_scores_do_not_overflow() -> None:
    world = replace(make_world([100]), scale=1000.0)
    (native,), (reference,) = world.run([(0, 0, 100)]), world.run([(0, 0, 100)], "reference")
    assert torch.isfinite(native).all()
    assert_close(native, reference, 1e-3)


@pytest.mark.parametrize("variant", ["native", "reference"])
def test_a_table_that_leads_outside_the_cache_is_refused(variant: str) -> None:
    world = make_world([40, 20])
    q, batch = world.batch([(0, 39, 40), (1, 19, 20)])
    call = {"scale": world.scale, "variant": variant}
    for block in (-1, 99):
        tables = batch.block_tables.clone()
        tables[1, 1] = block
        with pytest.raises(IndexError, match="sequence 1"):
            paged_attention(q, world.k_cache, world.v_cache, replace(batch, block_tables=tables), **call)  # type: ignore[arg-type]
    longer = replace(batch, seq_lens=torch.tensor([400, 20], dtype=torch.int32))
    with pytest.raises(IndexError, match="sequence 0"):
        paged_attention(q, world.k_cache, world.v_cache, longer, **call)  # type: ignore[arg-type]


def test_what_does_not_fit_is_refused() -> None:
    world = make_world([40])
    q, batch = world.batch([(0, 38, 40)])
    k_cache, v_cache = world.k_cache, world.v_cache
    with pytest.raises(ValueError, match="does not fit k_cache"):
        paged_attention(q.bfloat16(), k_cache, v_cache, batch, scale=1.0)
    with pytest.raises(ValueError, match="does not fit k_cache"):
        paged_attention(q[:, :5], k_cache, v_cache, batch, scale=1.0)
    with pytest.raises(ValueError, match="q has 1 tokens, the batch has 2"):
        paged_attention(q[:1], k_cache, v_cache, batch, scale=1.0)
    with pytest.raises(ValueError, match="must not be negative"):
        paged_attention(q, k_cache, v_cache, batch, scale=1.0, window=-1)
    with pytest.raises(ValueError, match="a window of 8 and chunks of 4 exclude each other"):
        paged_attention(q, k_cache, v_cache, batch, scale=1.0, window=8, chunk=4)
    with pytest.raises(ValueError, match="caches"):
        paged_attention(q, k_cache[..., :8], v_cache, batch, scale=1.0)
    with pytest.raises(ValueError, match="heads and dims of q must be contiguous"):
        paged_attention(torch.ones(2, 6, 64)[..., ::2], k_cache, v_cache, batch, scale=1.0)
    with pytest.raises(ValueError, match="AttentionBatch: seq_lens"):
        replace(batch, seq_lens=batch.seq_lens.long())
    with pytest.raises(ValueError, match="AttentionBatch: query_start"):
        replace(batch, query_start=batch.query_start[:1])


def test_options_that_do_not_fit_are_refused() -> None:
    world = make_world([40])
    q, batch = world.batch([(0, 38, 40)])
    caches = (world.k_cache, world.v_cache)
    with pytest.raises(ValueError, match="scale must be positive"):
        paged_attention(q, *caches, batch, scale=0.0)
    with pytest.raises(ValueError, match="window 8 and chunk 0 need causal attention"):
        paged_attention(q, *caches, batch, scale=1.0, window=8, causal=False)
    for name in ("sinks", "slopes"):
        options: dict[str, Any] = {name: torch.ones(5)}
        with pytest.raises(ValueError, match=name):
            paged_attention(q, *caches, batch, scale=1.0, **options)
    with pytest.raises(ValueError, match="slopes need causal attention"):
        paged_attention(q, *caches, batch, scale=1.0, slopes=torch.ones(6), causal=False)
    with pytest.raises(ValueError, match="numbers by distance need causal attention"):
        paged_attention(q, *caches, batch, scale=1.0, distances=torch.ones(len(q), 6, 3), causal=False)
    for shape in ((len(q), 5, 3), (5, 3), (1, 6, 3)):
        with pytest.raises(ValueError, match=r"distances .* must be contiguous float32"):
            paged_attention(q, *caches, batch, scale=1.0, distances=torch.ones(shape))
    with pytest.raises(ValueError, match="take none"):
        paged_attention(q, *caches, batch, scale=1.0, k_scale=torch.ones(2), v_scale=torch.ones(2))


def test_decode_rows_that_do_not_fit_are_refused() -> None:
    world = make_world([40, 20])
    _, batch = world.batch([(0, 39, 40), (1, 19, 20)])
    assert replace(batch, decode_rows=2).decode_tokens == 2
    for rows, length in ((3, 1), (-1, 1), (2, 2)):
        with pytest.raises(ValueError, match="decode rows"):
            replace(batch, decode_rows=rows, decode_query_len=length)
    for length in (0, 9):
        with pytest.raises(ValueError, match="decode_query_len must be 1 to 8"):
            replace(batch, decode_query_len=length)


@pytest.mark.parametrize("variant", ["native", "reference"])
def test_a_query_without_keys_gives_zeros_whatever_its_sink(variant: str) -> None:
    _, batch = (world := make_world([20])).batch([(0, 18, 20)])
    batch = replace(batch, seq_lens=torch.zeros(1, dtype=torch.int32))
    caches = (world.k_cache.nan_to_num(), world.v_cache.nan_to_num())
    for sinks in (torch.full((6,), float("-inf")), torch.full((6,), 300.0)):
        q = world.queries[0][18:]
        out = paged_attention(q, *caches, batch, scale=1.0, sinks=sinks, causal=False, variant=variant)  # type: ignore[arg-type]
        assert not out.any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("softcap", [0.0, 5.0])
def test_without_causality_every_query_sees_every_key(dtype: torch.dtype, softcap: float) -> None:
    world = make_world([600, 70, 5], heads=4, kv_heads=2, dtype=dtype, softcap=softcap)
    counts, lengths = [50, 1, 30], [600, 70, 5]  # more queries than keys, too
    caches = (world.k_cache.nan_to_num(), world.v_cache.nan_to_num())
    width = max(map(len, world.tables))
    tables = torch.tensor([table + [-9] * (width - len(table)) for table in world.tables], dtype=torch.int32)
    starts = torch.tensor([0, *counts]).cumsum(0).int()
    q = normal(sum(counts), 4, 32, seed=5, dtype=dtype)
    batch = AttentionBatch(
        starts, torch.tensor(lengths, dtype=torch.int32), tables, torch.zeros(len(q), dtype=torch.int64), 50, 600
    )
    out, expected = (
        paged_attention(q, *caches, batch, scale=0.2, softcap=softcap, causal=False, variant=variant)
        for variant in ("native", "reference")
    )
    assert_close(out, expected, 5e-6 if dtype == torch.float32 else None)
