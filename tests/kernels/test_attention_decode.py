from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from stentor.kernels.attention import AttentionBatch, paged_attention, reference, triton_decode
from stentor.kernels.attention.arguments import AttentionArgs
from stentor.kernels.attention.decode_tunables import tunables
from stentor.kernels.attention.triton_decode import default_config, paged_decode, prepare_decode
from stentor.kernels.tuning import Config, overridden
from stentor.tests.kernels.gpu import DEVICE, TRITON_FLOATS
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal
from stentor.tests.kernels.paged_sequences import make_step
from stentor.tests.support.interpreter import shuffled

TOLERANCE = {torch.float32: 5e-6, torch.float16: 3e-3, torch.bfloat16: 1.6e-2}
FP8 = torch.float8_e4m3fn
MANY_SPLITS = Config.of(TILE=16, MIN_KEYS=16, PROGRAMS_PER_SM=8)
"""Of tests: short sequences split into many parts."""


@dataclass
class Decode:
    """Rows of a few new tokens over a shuffled cache; unwritten slots hold NaN."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    lengths: list[int]
    tables: Tensor
    query_len: int
    window: int = 0
    softcap: float = 0.0
    sinks: Tensor | None = None
    slopes: Tensor | None = None
    distances: Tensor | None = None
    causal: bool = True
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None
    longest: int = 0
    counts: list[int] | None = None
    """The new tokens of each row, up to ``query_len``; None: as many."""

    def run(self, config: Config | None = None) -> Tensor:
        """Under ``config``, or the default one."""
        out = torch.full(self.q.shape, float("nan"), dtype=self.q.dtype, device=DEVICE)
        chosen = config or default_config(self.q.shape[2], self.k_cache.dtype)
        with overridden("paged_decode", chosen):
            lengths = torch.tensor(self.lengths, dtype=torch.int32, device=DEVICE)
            longest = self.longest or max(self.lengths)
            rows, ragged = len(self.lengths), self.counts is not None
            paged_decode(self.args(lengths, out, longest), rows=rows, query_len=self.query_len, ragged=ragged)
        return out

    def args(self, lengths: Tensor, out: Tensor, longest: int) -> AttentionArgs:
        starts, numbers = self._starts(), self._numbers()
        return AttentionArgs(
            self.q, self.k_cache, self.v_cache, starts, lengths, self.tables, out, max_seq_len=longest, **numbers
        )

    def expected(self) -> Tensor:
        lengths = torch.tensor(self.lengths, dtype=torch.int32, device=DEVICE)
        # The reference multiplies hidden values by zero.
        k, v = (cache.float().nan_to_num().to(cache.dtype) for cache in (self.k_cache, self.v_cache))
        args = self.args(lengths, torch.empty_like(self.q), max(self.lengths))
        return reference.paged_attention(args._replace(k_cache=k, v_cache=v))

    def _starts(self) -> Tensor:
        counts = self.counts or [self.query_len] * len(self.lengths)
        return torch.tensor([0, *counts], device=DEVICE).cumsum(0).int()

    def _numbers(self) -> dict[str, Any]:
        return {
            "scale": self.q.shape[2] ** -0.5,
            "window": self.window,
            "softcap": self.softcap,
            "sinks": self.sinks,
            "slopes": self.slopes,
            "distances": self.distances,
            "causal": self.causal,
            "k_scale": self.k_scale,
            "v_scale": self.v_scale,
        }


def make(
    lengths: list[int],
    *,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 32,
    size: int = 16,
    query_len: int = 1,
    window: int = 0,
    softcap: float = 0.0,
    transposed: bool = False,
    new: list[int] | None = None,
) -> Decode:
    """``transposed``: keys lie as on the CPU, ``[blocks, heads, dim, size]``. ``new``: the new tokens of each row."""
    counts = [-(-length // size) for length in lengths]
    news = new or [query_len] * len(lengths)
    blocks = sum(counts) + 2
    order = torch.randperm(blocks, generator=torch.Generator().manual_seed(1)).int()
    tables = torch.full((len(lengths), max(counts) + 1), -9, dtype=torch.int32)  # unused entries lead nowhere
    cache_dtype = cache_dtype or dtype
    caches = [torch.full((blocks, kv_heads, size, dim), float("nan")).to(cache_dtype) for _ in "kv"]
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        used = order[sum(counts[:row]) : sum(counts[:row]) + count]
        first = max(0, int(reference.first_seen(length - news[row], window))) // size
        tables[row, first:count] = used[first:]
        for part, cache in enumerate(caches):
            slots = normal(count * size, kv_heads, dim, seed=10 * row + part)
            slots[length:] = float("nan")
            cache[used.long()] = slots.view(count, size, kv_heads, dim).transpose(1, 2).to(cache_dtype)
    k, v = (cache.to(DEVICE) for cache in caches)
    k = k.transpose(2, 3)
    scales: list[Tensor | None] = [None, None]
    if cache_dtype == FP8:
        scales = [(0.5 + torch.arange(kv_heads) / 8 + part).to(DEVICE) for part in (0.0, 0.25)]
    return Decode(
        normal(sum(news), heads, dim, seed=7, dtype=dtype).to(DEVICE),
        k.contiguous() if transposed else k,
        v,
        lengths,
        tables.to(DEVICE),
        query_len,
        window,
        softcap,
        k_scale=scales[0],
        v_scale=scales[1],
        counts=new,
    )


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "size", "query_len", "window", "softcap", "tile"),
    [
        (4, 2, 64, 16, 1, 0, 0.0, 16),
        (5, 1, 80, 16, 1, 0, 0.0, 32),
        (3, 3, 96, 64, 1, 20, 0.0, 32),
        (6, 2, 128, 32, 1, 0, 5.0, 32),
        (2, 1, 256, 48, 2, 9, 30.0, 32),
        (4, 2, 40, 32, 8, 0, 0.0, 16),
        (5, 1, 16, 16, 8, 5, 0.0, 64),
        (2, 2, 24, 128, 3, 40, 0.0, 64),
        (4, 2, 32, 16, 1, -21, 0.0, 16),  # chunks of 21
        (4, 1, 16, 16, 8, -33, 0.0, 32),
    ],
)
def test_rows_of_any_length_are_the_reference(
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    dim: int,
    size: int,
    query_len: int,
    window: int,
    softcap: float,
    tile: int,
) -> None:
    decode = make(
        [query_len, 0, 70],
        dtype=dtype,
        heads=heads,
        kv_heads=kv_heads,
        dim=dim,
        size=size,
        query_len=query_len,
        window=window,
        softcap=softcap,
    )
    out = decode.run(Config.of(TILE=tile, MIN_KEYS=32, PROGRAMS_PER_SM=8))
    assert_close(out, decode.expected(), TOLERANCE[dtype])
    assert not out[query_len : 2 * query_len].any()


ROWS_OF_UNEQUAL_LENGTH = ([16, 0, 17, 70, 5, 33], [1, 2, 4, 3, 4, 1])
"""Keys and new tokens; new tokens of the third and the last begin behind a block, and a row of padding has two."""


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("config", [None, MANY_SPLITS])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "size", "query_len", "window", "softcap"),
    [
        (4, 2, 32, 16, 4, 0, 0.0),
        (7, 1, 64, 16, 8, 0, 5.0),
        (2, 2, 24, 64, 5, 20, 0.0),
        (6, 2, 16, 32, 4, -21, 0.0),  # chunks of 21
    ],
)
def test_rows_may_have_different_numbers_of_new_tokens(
    dtype: torch.dtype,
    config: Config | None,
    heads: int,
    kv_heads: int,
    dim: int,
    size: int,
    query_len: int,
    window: int,
    softcap: float,
) -> None:
    lengths, new = ROWS_OF_UNEQUAL_LENGTH
    shape: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "dim": dim, "size": size}
    decode = make(lengths, dtype=dtype, query_len=query_len, window=window, softcap=softcap, new=new, **shape)
    decode.sinks = torch.linspace(-1.0, 2.0, heads, device=DEVICE)
    out = decode.run(config)
    assert_close(out, decode.expected(), TOLERANCE[dtype])
    assert not out[new[0] : new[0] + new[1]].any()


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("config", [None, MANY_SPLITS])
@pytest.mark.parametrize(("window", "softcap", "query_len"), [(0, 0.0, 1), (21, 0.0, 3), (0, 5.0, 1)])
def test_slopes_are_the_references(
    dtype: torch.dtype, config: Config | None, window: int, softcap: float, query_len: int
) -> None:
    decode = make([1 + query_len, 70, 300], dtype=dtype, window=window, softcap=softcap, query_len=query_len)
    decode.slopes = torch.tensor([0.5, 0.0, 2.0, 0.01], device=DEVICE)
    assert_close(decode.run(config), decode.expected(), TOLERANCE[dtype])


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("config", [None, MANY_SPLITS])
@pytest.mark.parametrize(("window", "softcap", "query_len"), [(0, 0.0, 1), (21, 0.0, 3), (0, 5.0, 1)])
def test_numbers_by_distance_are_the_references(
    dtype: torch.dtype, config: Config | None, window: int, softcap: float, query_len: int
) -> None:
    decode = make([1 + query_len, 70, 300], dtype=dtype, window=window, softcap=softcap, query_len=query_len)
    numbers = torch.randn(*decode.q.shape[:2], 21, generator=torch.Generator().manual_seed(5))
    for distances in (2 * numbers, 2 * numbers[0]):
        decode.distances = distances.to(DEVICE)
        assert_close(decode.run(config), decode.expected(), TOLERANCE[dtype])


@pytest.mark.triton
@pytest.mark.parametrize("window", [0, 21])
def test_a_row_of_drafts_has_the_bits_of_rows_of_equal_length(window: int) -> None:
    equal = make([40, 23, 70], query_len=3, window=window)
    assert_same_bits(replace(equal, counts=[3, 3, 3]).run(MANY_SPLITS), equal.run(MANY_SPLITS))


@pytest.mark.triton
def test_a_launch_of_rows_with_drafts_is_right_for_other_numbers_of_them() -> None:
    """A captured launch has a fixed number of tokens; those that rows do not use are padding."""
    first = make([33, 40, 70, 0], query_len=4, new=[4, 1, 3, 2])
    other = make([33, 40, 70, 0], query_len=4, new=[1, 2, 4, 3])
    starts, lengths = first._starts(), torch.tensor(first.lengths, dtype=torch.int32, device=DEVICE)
    out = torch.empty_like(first.q)
    with overridden("paged_decode", MANY_SPLITS):
        args = first.args(lengths, out, 70)._replace(query_start=starts)
        launch = prepare_decode(args, rows=4, query_len=4, ragged=True)
    for decode in (first, other):
        starts.copy_(decode._starts())
        tensors = decode.args(lengths, out, 70).tensors
        launch.run(tensors, seq_lens=lengths, query_start=starts, plans={})
        assert_close(out, decode.expected(), TOLERANCE[torch.float32])


@pytest.mark.triton
def test_rows_of_drafts_before_prompts_run_on_the_decode_kernel() -> None:
    sequences = [(33, 3), (64, 1), (70, 70), (9, 2)]
    step = make_step(sequences)
    mixed = replace(step, batch=replace(step.batch, decode_rows=2, decode_query_len=4, ragged_tokens=4))
    assert_close(mixed.run(), step.run("reference"), TOLERANCE[torch.float32])
    assert mixed.batch.plans  # of the decode kernel
    assert not step.batch.plans


@pytest.mark.triton
@pytest.mark.parametrize("size", [16, 64])
@pytest.mark.parametrize("window", [0, 21])
def test_keys_may_lie_as_on_the_cpu(size: int, window: int) -> None:
    there, here = (make([60, 7], size=size, window=window, transposed=transposed) for transposed in (False, True))
    assert there.k_cache.stride(2) == here.k_cache.stride(3) == 1
    assert_same_bits(here.run(MANY_SPLITS), there.run(MANY_SPLITS))


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("least", [16, 48])
def test_splits_change_nothing_but_rounding(dtype: torch.dtype, least: int) -> None:
    decode = make([100, 3, 77], dtype=dtype, kv_heads=1, query_len=2)
    whole = decode.run(Config.of(TILE=16, MIN_KEYS=256, PROGRAMS_PER_SM=1))
    assert_close(decode.run(Config.of(TILE=16, MIN_KEYS=least, PROGRAMS_PER_SM=1)), whole, TOLERANCE[dtype])


@pytest.mark.triton
@pytest.mark.parametrize("query_len", [1, 3])
def test_whoever_arrives_last_joins_in_one_order_and_leaves_no_count(query_len: int) -> None:
    decode = make([100, 3, 0, 77], kv_heads=1, heads=11, query_len=query_len)
    out = torch.empty_like(decode.q)
    lengths = torch.tensor(decode.lengths, dtype=torch.int32, device=DEVICE)
    with overridden("paged_decode", MANY_SPLITS):
        launch = prepare_decode(decode.args(lengths, out, 100), rows=4, query_len=query_len)
    found = []
    for seed in range(4):
        out.fill_(float("nan"))
        with shuffled(seed):
            launch.run(decode.args(lengths, out, 100).tensors, seq_lens=lengths, query_start=None, plans={})
        assert not launch.arrived.any()
        found.append(out.clone())
    assert_close(found[0], decode.expected(), TOLERANCE[torch.float32])
    for other in found[1:]:
        assert_same_bits(other, found[0])


@pytest.mark.triton
def test_counts_of_arrivals_stay_where_captured_launches_know_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_decode, "_COUNTERS", {})
    monkeypatch.setattr(triton_decode, "LEAST_COUNTERS", 8)
    device = torch.device(DEVICE)
    few, same, many, few_again = (triton_decode.counters(device, count) for count in (3, 8, 9, 2))
    assert few.data_ptr() == same.data_ptr()
    assert len(few) == 8
    assert len(many) == 16
    assert few_again is many
    assert any(each is few for each in triton_decode._COUNTERS[device])


@pytest.mark.triton
def test_a_bound_above_every_length_changes_nothing() -> None:
    decode = make([40, 17])
    assert_same_bits(replace(decode, longest=150).run(MANY_SPLITS), decode.run(MANY_SPLITS))


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("config", [None, MANY_SPLITS])
@pytest.mark.parametrize("query_len", [1, 4])
def test_a_sink_counts_once_however_the_keys_are_split(
    dtype: torch.dtype, config: Config | None, query_len: int
) -> None:
    decode = make([60, 4, 0], dtype=dtype, query_len=query_len, window=30)
    decode.sinks = torch.tensor([-1.0, 5.0, 0.0, 300.0], device=DEVICE)
    out = decode.run(config)
    assert_close(out, decode.expected(), TOLERANCE[dtype])
    assert out[:, 3].float().abs().max() < 1e-30  # all weight goes to its sink


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("config", [None, MANY_SPLITS])
def test_without_causality_every_query_sees_every_key(dtype: torch.dtype, config: Config | None) -> None:
    decode = make([2, 50, 0], dtype=dtype, query_len=4)
    decode.causal = False
    assert_close(decode.run(config), decode.expected(), TOLERANCE[dtype])


@pytest.mark.triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("config", [None, MANY_SPLITS])
@pytest.mark.parametrize(("heads", "dim", "size", "softcap"), [(4, 64, 16, 0.0), (6, 48, 64, 8.0)])
def test_float8_caches_are_scaled_by_head(
    dtype: torch.dtype, config: Config | None, heads: int, dim: int, size: int, softcap: float
) -> None:
    decode = make([70, 1, 0], dtype=dtype, cache_dtype=FP8, heads=heads, dim=dim, size=size, softcap=softcap)
    assert_close(decode.run(config), decode.expected(), TOLERANCE[dtype])


@pytest.mark.triton
def test_large_queries_over_float8_do_not_overflow_float16() -> None:
    decode = make([33], dtype=torch.bfloat16, cache_dtype=FP8)
    decode.q = decode.q * 1e6
    assert decode.k_scale is not None
    decode.k_scale = decode.k_scale * 1e-6
    assert_close(decode.run(), decode.expected(), TOLERANCE[torch.bfloat16])


@pytest.mark.triton
def test_queries_that_fill_no_tile_evenly_take_several() -> None:
    decode = make([40, 9], heads=11, kv_heads=1, query_len=3)  # 33 queries in tiles of 16
    assert_close(decode.run(MANY_SPLITS), decode.expected(), TOLERANCE[torch.float32])


@pytest.mark.triton
def test_queries_are_read_from_a_fused_projection_and_other_rows_are_left_alone() -> None:
    decode = make([40, 9])
    fused = torch.full((5, 4 * 32 + 64), float("nan"), device=DEVICE)
    fused[:2, 32 : 32 + 4 * 32] = decode.q.flatten(1)
    expected = decode.expected()
    decode.q = fused[:, 32 : 32 + 4 * 32].view(5, 4, 32)
    out = decode.run(MANY_SPLITS)
    assert_close(out[:2], expected, TOLERANCE[torch.float32])
    assert out[2:].isnan().all()


@pytest.mark.triton
def test_no_rows_are_no_work() -> None:
    decode = make([5])
    decode.lengths, decode.longest = [], 5
    assert decode.run().isnan().all()


@pytest.mark.triton
def test_layers_of_a_kind_share_what_one_of_them_planned() -> None:
    decode = make([100, 3, 77], kv_heads=1)
    batch = AttentionBatch(
        torch.arange(4, dtype=torch.int32, device=DEVICE),
        torch.tensor(decode.lengths, dtype=torch.int32, device=DEVICE),
        decode.tables,
        torch.zeros(3, dtype=torch.int64, device=DEVICE),
        max_query_len=1,
        max_seq_len=100,
        decode_rows=3,
    )

    def attend(window: int) -> Tensor:
        with overridden("paged_decode", MANY_SPLITS):
            return paged_attention(
                decode.q, decode.k_cache, decode.v_cache, batch, scale=32**-0.5, window=window, variant="triton"
            )

    first = attend(0)
    (plan,) = batch.plans.values()
    plan_of_layer = plan.clone()
    assert_same_bits(attend(0), first)
    assert_close(first, decode.expected(), TOLERANCE[torch.float32])
    (same,) = batch.plans.values()
    assert same is plan
    assert_same_bits(plan, plan_of_layer)
    attend(30)
    assert len(batch.plans) == 2


def test_every_tunable_offers_its_default() -> None:
    keys = [tunable.key for tunable in tunables()]
    assert len(set(keys)) == len(keys)
    for tunable in tunables():
        dtype = FP8 if "float8" in tunable.key else torch.bfloat16
        assert default_config(128, dtype) in tunable.candidates


@pytest.mark.gpu
@pytest.mark.parametrize("size", [16, 64, 128])
@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, FP8])
@pytest.mark.parametrize(("heads", "query_len"), [(32, 1), (64, 1), (64, 8)])
def test_models_shapes_are_the_reference(size: int, cache_dtype: torch.dtype, heads: int, query_len: int) -> None:
    decode = make(
        [4096, 0, 1, 777, 64][: 5 if query_len == 1 else 2],
        dtype=torch.bfloat16,
        cache_dtype=cache_dtype,
        heads=heads,
        kv_heads=8,
        dim=128,
        size=size,
        query_len=query_len,
    )
    assert_close(decode.run(), decode.expected(), TOLERANCE[torch.bfloat16])


@pytest.mark.gpu
def test_a_captured_launch_is_right_for_other_lengths() -> None:
    decode = make([900, 3, 511, 64], dtype=torch.bfloat16, heads=32, kv_heads=8, dim=128, size=64)
    config, full = default_config(128, torch.bfloat16), decode.lengths
    lengths = torch.tensor([1, 1, 1, 0], dtype=torch.int32, device=DEVICE)
    out = torch.empty_like(decode.q)
    args = decode.args(lengths, out, 1024)

    def step() -> None:
        plans: dict[Hashable, Tensor] = {}
        for _ in range(2):  # layers: what the first one plans must serve the second in each replay
            out.zero_()
            paged_decode(args, rows=4, query_len=1, plans=plans)
        assert len(plans) == 1

    with overridden("paged_decode", config):
        step()  # compiles
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
    lengths.copy_(torch.tensor(full, dtype=torch.int32))
    for _ in range(3):  # each leaves the counts of arrivals as it found them
        out.zero_()
        graph.replay()
        assert_close(out, decode.expected(), TOLERANCE[torch.bfloat16])
