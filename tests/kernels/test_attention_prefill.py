"""The Triton kernel for many new tokens, and the decode kernel beside it in one batch."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from stentor.kernels.attention import choose, prefill_split, triton_prefill
from stentor.kernels.attention.arguments import AttentionArgs
from stentor.kernels.attention.triton_prefill import copies_reason
from stentor.kernels.launching.copy_engine import COPY_ENGINE, THREADS
from stentor.kernels.launching.repeated import LaunchCache, Start
from stentor.kernels.tuning import Config, overridden
from stentor.tests.kernels.gpu import DEVICE, TRITON_FLOATS
from stentor.tests.kernels.helpers import assert_close, assert_same_bits
from stentor.tests.kernels.paged_sequences import FP8, Step, make_step

pytestmark = pytest.mark.triton

TOLERANCE = {torch.float32: 5e-6, torch.float16: 3e-3, torch.bfloat16: 1.6e-2}
SEQUENCES = [(70, 40), (5, 5), (33, 0), (90, 3)]
LONG_PREFIXES = [(109, 5), (9, 2), (75, 8), (40, 0)]
"""Of four parts of a tile of 32 keys each, some of them empty in all sequences but the first."""


def assert_is_the_reference(step: Step, **options: Any) -> torch.Tensor:
    """Returns what it gives."""
    assert choose(step.q, step.k_cache, "triton") == "triton"
    out = step.run(**options)
    assert_close(out, step.run("reference", **options), TOLERANCE[step.q.dtype])
    return out


@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "size", "window", "softcap"),
    [
        (2, 2, 64, 16, 0, 0.0),
        (4, 1, 80, 32, 0, 0.0),
        (7, 1, 96, 64, 0, 5.0),
        (8, 1, 128, 128, 0, 0.0),
        (2, 1, 256, 48, 9, 30.0),
        (4, 2, 24, 16, 21, 0.0),
        (4, 2, 5, 64, 1, 0.0),
        (4, 2, 16, 96, 64, 0.0),
    ],
)
def test_chunks_over_cached_prefixes_are_the_reference(
    dtype: torch.dtype, heads: int, kv_heads: int, dim: int, size: int, window: int, softcap: float
) -> None:
    step = make_step(SEQUENCES, heads=heads, kv_heads=kv_heads, dim=dim, size=size, dtype=dtype)
    assert_is_the_reference(step, window=window, softcap=softcap)


@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("options", [{}, {"window": 13}, {"chunk": 13}, {"causal": False}, {"softcap": 2.0}])
def test_sinks_are_the_references(dtype: torch.dtype, options: dict[str, Any]) -> None:
    sinks = torch.tensor([-9.0, 0.5, 3.0, 20.0], device=DEVICE)
    assert_is_the_reference(make_step(SEQUENCES, dtype=dtype), sinks=sinks, **options)


@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("options", [{}, {"window": 13}, {"softcap": 2.0}])
def test_slopes_are_the_references(dtype: torch.dtype, options: dict[str, Any]) -> None:
    slopes = torch.tensor([0.5, 0.0, 2.0, 0.01], device=DEVICE)
    for sequences in (SEQUENCES, LONG_PREFIXES):
        assert_is_the_reference(make_step(sequences, dtype=dtype), slopes=slopes, **options)


@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("options", [{}, {"window": 13}, {"softcap": 2.0}])
def test_numbers_by_distance_are_the_references(dtype: torch.dtype, options: dict[str, Any]) -> None:
    for sequences in (SEQUENCES, LONG_PREFIXES):
        step = make_step(sequences, dtype=dtype)
        distances = 2 * torch.randn(*step.q.shape[:2], 13, generator=torch.Generator().manual_seed(5)).to(DEVICE)
        for numbers in (distances, distances[0].contiguous()):
            assert_is_the_reference(step, distances=numbers, **options)


@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("size", [16, 64])
def test_float8_caches_are_the_references(dtype: torch.dtype, size: int) -> None:
    assert_is_the_reference(make_step(SEQUENCES, dtype=dtype, cache_dtype=FP8, size=size))


@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("options", [{"window": 13, "softcap": 2.0}, {"causal": False}, {"slopes": True}], ids=str)
def test_products_of_float8_keys_are_the_references_of_queries_rounded_alike(
    parts: list[int], options: dict[str, Any], dtype: torch.dtype
) -> None:
    step = make_step(LONG_PREFIXES, dtype=dtype, cache_dtype=FP8)
    step.q[3] = 0.0
    options = options | {"sinks": torch.tensor([-9.0, 0.5, 3.0, 20.0], device=DEVICE)}
    if "slopes" in options:
        options["slopes"] = torch.tensor([0.5, 0.0, 2.0, 0.01], device=DEVICE)
    widened = step.run(**options)
    with overridden("prefill_attention", Config.of(BLOCK_M=32, BLOCK_N=32, SCORE_BITS=8)):
        out = step.run(**options)
    factor = step.q.float().abs().amax(-1, keepdim=True).clamp(min=1e-30) / 448
    alike = replace(step, q=(step.q.float() / factor).to(FP8).float() * factor)
    assert_close(out.float(), alike.run("reference", **options), TOLERANCE[dtype])
    assert_close(out.float(), widened.float(), 0.04)  # what rounding queries to three bits changes
    assert not torch.equal(out, widened)
    assert bool(parts) == ("window" not in options)


@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize(
    ("size", "dim", "options"),
    [(64, 64, {}), (32, 16, {"window": 50}), (64, 32, {"chunk": 40}), (32, 128, {"causal": False, "softcap": 2.0})],
    ids=str,
)
def test_tiles_that_the_copy_engine_brings_give_the_same_bits(
    parts: list[int],
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    dim: int,
    options: dict[str, Any],
    dtype: torch.dtype,
) -> None:
    reasons: list[str | None] = []

    def noted(*given: Any) -> str | None:
        reasons.append(copies_reason(*given))
        return reasons[-1]

    monkeypatch.setattr(triton_prefill, "LEAST_KEYS", 1)
    monkeypatch.setattr(triton_prefill, "copies_reason", noted)
    for sequences in (SEQUENCES, LONG_PREFIXES):
        step = make_step(sequences, size=size, dim=dim, dtype=dtype)
        made = []
        for loads in (THREADS, COPY_ENGINE):
            with overridden("prefill_attention", Config.of(BLOCK_M=16, BLOCK_N=32, LOADS=loads)):
                made.append(step.run(**options))
        assert_same_bits(*made)
        assert_close(made[1], step.run("reference", **options), TOLERANCE[dtype])
    assert reasons == [None, None]


def test_the_copy_engine_is_given_only_caches_that_it_can_take(monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(step: Step, block_n: int = 32) -> str:
        args = AttentionArgs.of(step.q, step.k_cache, step.v_cache, step.batch, scale=1.0)
        return copies_reason(args._replace(max_seq_len=4096), block_n) or ""

    monkeypatch.setattr(triton_prefill, "capability", lambda: 90)
    assert reason(make_step(SEQUENCES, size=64, dim=64)) == ""
    assert "brings tiles in one block of 64, not of 128" in reason(make_step(SEQUENCES, size=64, dim=64), 128)
    assert "dims of powers of two, not 80" in reason(make_step(SEQUENCES, size=64, dim=80))
    assert "of the queries' dtype" in reason(make_step(SEQUENCES, size=64, cache_dtype=FP8))
    assert "a token's dims side by side" in reason(make_step(SEQUENCES, size=64, transposed=True))
    monkeypatch.setattr(triton_prefill, "LEAST_KEYS", 5000)
    assert reason(make_step(SEQUENCES, size=64, dim=64)) == "no sequence has 5000 keys"
    monkeypatch.setattr(triton_prefill, "capability", lambda: 89)
    assert "came with compute capability 9.0" in reason(make_step(SEQUENCES, size=64, dim=64))


@pytest.mark.parametrize("dtype", TRITON_FLOATS)
def test_cross_attention_sees_every_key_whatever_the_number_of_queries(dtype: torch.dtype) -> None:
    step = make_step([(3, 40), (0, 4), (70, 2)], dtype=dtype)
    assert not assert_is_the_reference(step, causal=False)[40:44].any()


@pytest.mark.parametrize("size", [16, 64])
@pytest.mark.parametrize("window", [0, 21])
def test_keys_may_lie_as_on_the_cpu(size: int, window: int) -> None:
    there, here = (make_step(SEQUENCES, size=size, transposed=transposed) for transposed in (False, True))
    assert there.k_cache.stride(2) == here.k_cache.stride(3) == 1
    assert_same_bits(here.run(window=window), there.run(window=window))


@pytest.mark.proof(each="config")
@pytest.mark.parametrize(
    "config",
    [Config.of(BLOCK_M=16, BLOCK_N=64), Config.of(BLOCK_M=64, BLOCK_N=16), Config.of(BLOCK_M=16, BLOCK_N=32)],
    ids=str,
)
@pytest.mark.parametrize(("heads", "window"), [(6, 0), (20, 40)])
def test_tiles_of_any_size_give_the_same(config: Config, heads: int, window: int) -> None:
    step = make_step([(70, 30), (20, 5)], heads=heads, kv_heads=1, size=32)
    with overridden("prefill_attention", config):
        assert_is_the_reference(step, window=window)


@pytest.mark.parametrize("options", [{}, {"window": 30}, {"chunk": 30}])
def test_a_row_is_the_same_in_any_chunk_and_batch(options: dict[str, Any]) -> None:
    # The interpreter multiplies by numpy, whose sums depend on a row's place in the tile.
    assert_same = assert_same_bits if DEVICE == "cuda" else partial(assert_close, tolerance=1e-6)
    whole = make_step([(70, 70)]).run(**options)
    for begin, end in ((0, 33), (33, 70), (69, 70)):
        chunk = make_step([(end, end - begin), (40, 3)]).run(**options)
        assert_same(chunk[: end - begin], whole[begin:end])


@pytest.mark.parametrize("size", [16, 64])
def test_blocks_behind_the_window_may_be_gone(size: int) -> None:
    step = make_step([(200, 20)], size=size)
    whole = step.run(window=20)
    gone = (200 - 20 - 20 + 1) // size
    assert gone > 0
    step.batch.block_tables[0, :gone] = -1
    assert_same_bits(step.run(window=20), whole)


@pytest.mark.parametrize("size", [16, 64])
def test_large_scores_do_not_overflow(size: int) -> None:
    step = make_step([(70, 20)], size=size)
    out = step.run(scale=1000.0)
    assert_close(out, step.run("reference", scale=1000.0), 1e-3)


@pytest.mark.parametrize("sequences", [[(4, 0), (9, 0)], [(0, 0)]])
def test_a_batch_may_bring_no_tokens(sequences: list[tuple[int, int]]) -> None:
    assert make_step(sequences).run().shape == (0, 4, 32)


def test_queries_may_be_a_slice_of_a_fused_projection() -> None:
    step = make_step(SEQUENCES)
    whole = step.run()
    step.q = torch.cat([step.q.flatten(1), step.q.flatten(1)], dim=1)[:, :128].view(48, 4, 32)
    assert not step.q.is_contiguous()
    assert_same_bits(step.run(), whole)


@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("query_len", [1, 3])
@pytest.mark.parametrize("options", [{}, {"window": 21}])
def test_decode_rows_padding_and_chunks_share_a_batch(
    dtype: torch.dtype, query_len: int, options: dict[str, Any]
) -> None:
    decodes = [(50, query_len), (0, query_len), (query_len, query_len)]
    step = make_step([*decodes, *SEQUENCES], dtype=dtype, decode_rows=3, decode_query_len=query_len)
    sinks = torch.tensor([-9.0, 0.5, 3.0, 20.0], device=DEVICE)
    assert_is_the_reference(step, sinks=sinks, **options)
    assert not step.run(**options)[query_len : 2 * query_len].any()


FILLED_UP = [(50, 1), (0, 1), (0, 1), (70, 40), (5, 5), (0, 0), (0, 0), (0, 37)]
"""The batch of a graph: three decode rows, two of them padding, two prompts, two empty rows, and unused tokens."""


@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("options", [{}, {"window": 21}, {"chunk": 13}, {"softcap": 2.0}], ids=str)
def test_a_batch_that_is_filled_up_is_the_one_that_is_not(dtype: torch.dtype, options: dict[str, Any]) -> None:
    sinks = torch.tensor([-9.0, 0.5, 3.0, 20.0], device=DEVICE)
    step = make_step(FILLED_UP, dtype=dtype, decode_rows=3)
    step.batch = replace(step.batch, max_seq_len=1024)  # far above what there is: two programs share the keys of a tile
    for each in (None, sinks):
        out = assert_is_the_reference(step, sinks=each, **options)
        assert not out[1:3].any()
        assert not out[48:].any()


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Keys are split from 32 on, and what is read unwritten is NaN. Holds the parts of each launch that was split."""
    asked: list[int] = []

    def prepare(*args: Any, **options: Any) -> Start:
        start = prefill_split.prepare_join(*args, **options)

        def join(partial: torch.Tensor, *tensors: torch.Tensor | None) -> None:
            assert partial.isfinite().any()
            asked.append(partial.shape[2])
            start(partial, *tensors)

        return join

    monkeypatch.setattr(prefill_split, "PART_KEYS", 32)
    monkeypatch.setattr(triton_prefill, "prepare_join", prepare)
    monkeypatch.setattr("stentor.kernels.attention._LAUNCHES", LaunchCache())
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(8).isnan().all()
    yield asked
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "size", "options"),
    [
        (2, 2, 32, 16, {}),
        (4, 1, 64, 64, {}),
        (7, 1, 24, 48, {}),
        (2, 2, 64, 64, {"window": 60}),
        (4, 1, 16, 16, {"window": 70, "softcap": 5.0}),
        (7, 1, 5, 32, {"window": 75}),
        (8, 2, 32, 16, {"softcap": 5.0}),
        (4, 2, 32, 64, {"causal": False}),
    ],
)
def test_long_prefixes_whose_keys_are_split_are_the_reference(
    parts: list[int], heads: int, kv_heads: int, dim: int, size: int, options: dict[str, Any], dtype: torch.dtype
) -> None:
    step = make_step(LONG_PREFIXES, heads=heads, kv_heads=kv_heads, dim=dim, size=size, dtype=dtype)
    assert_is_the_reference(step, **options)
    (count,) = parts
    # a window leaves out a part where the tiles of queries, whose size the GPU decides, are low enough
    assert count in ((2, 3) if "window" in options else (4,))


@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("options", [{}, {"window": 60}, {"causal": False}, {"softcap": 2.0}], ids=str)
def test_split_keys_meet_each_sink_once(parts: list[int], dtype: torch.dtype, options: dict[str, Any]) -> None:
    sinks = torch.tensor([float("-inf"), 0.5, 3.0, 20.0], device=DEVICE)
    assert_is_the_reference(make_step(LONG_PREFIXES, dtype=dtype), sinks=sinks, **options)
    assert parts


@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize(("size", "transposed"), [(16, False), (64, False), (16, True), (64, True)])
def test_split_keys_may_be_float8_and_lie_as_on_the_cpu(
    parts: list[int], dtype: torch.dtype, size: int, transposed: bool
) -> None:
    step = make_step(LONG_PREFIXES, dtype=dtype, cache_dtype=FP8, size=size, transposed=transposed)
    assert_is_the_reference(step, window=90)
    assert parts


@pytest.mark.proof(each="keys")
@pytest.mark.parametrize("keys", [31, 32, 33, 63, 64, 65, 96])
def test_parts_may_end_anywhere_in_a_tile(parts: list[int], keys: int) -> None:
    step = make_step([(keys, 2), (128, 1)])
    assert_is_the_reference(step)
    assert_is_the_reference(step, window=60)
    assert len(parts) == 2


@pytest.mark.proof(each="config")
@pytest.mark.parametrize("config", [Config.of(BLOCK_M=16, BLOCK_N=64), Config.of(BLOCK_M=16, BLOCK_N=16)], ids=str)
def test_split_tiles_of_any_size_give_the_same(parts: list[int], config: Config) -> None:
    step = make_step([(141, 3), (77, 1)], heads=20, kv_heads=1, size=32)
    with overridden("prefill_attention", config):
        assert_is_the_reference(step)
        assert_is_the_reference(step, window=90)
    assert len(parts) == 2


def test_split_rows_that_see_no_key_are_zeros(parts: list[int]) -> None:
    step = make_step([(145, 3), (0, 4), (2, 5)])
    sinks = torch.tensor([float("-inf"), 0.5, 3.0, 20.0], device=DEVICE)
    alone = make_step([(145, 3)])
    for each in (None, sinks):
        out = step.run(sinks=each)
        assert_close(out[:3], alone.run("reference", sinks=each), 5e-6)
        assert not out[3:10].any()
        assert out[10:].all()
    assert len(parts) == 2


def test_split_chunks_follow_decode_rows(parts: list[int]) -> None:
    step = make_step([(50, 2), (0, 2), *LONG_PREFIXES], decode_rows=2, decode_query_len=2)
    assert_is_the_reference(step)
    assert parts


def test_split_keys_are_those_of_somebody_where_a_batch_is_filled_up(parts: list[int]) -> None:
    step = make_step([(50, 1), (0, 1), *LONG_PREFIXES, (0, 0), (0, 9)], decode_rows=2)
    sinks = torch.tensor([float("-inf"), 0.5, 3.0, 20.0], device=DEVICE)
    for length, each in ((109, None), (256, None), (256, sinks)):
        step.batch = replace(step.batch, max_seq_len=length)
        assert not assert_is_the_reference(step, sinks=each)[-9:].any()
    assert max(parts) > 3


def test_split_keys_behind_the_window_may_be_gone(parts: list[int]) -> None:
    step = make_step([(205, 10)])
    whole = step.run(window=100)
    step.batch.block_tables[0, : (205 - 10 - 100 + 1) // 16] = -1
    assert_same_bits(step.run(window=100), whole)
    assert len(parts) == 2


def test_a_wrong_largest_length_changes_only_how_keys_are_split(parts: list[int]) -> None:
    step = make_step([(205, 3), (9, 2)])
    expected = step.run("reference")
    for length in (64, 640):
        step.batch = replace(step.batch, max_seq_len=length)
        assert_close(step.run(), expected, 5e-6)
    assert parts[0] == 4
    assert parts[1] > 6


def test_many_tiles_are_not_split(parts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    step = make_step([(100, 1)] * 3, kv_heads=4)
    monkeypatch.setattr(triton_prefill, "multiprocessors", lambda _: 23)
    assert_is_the_reference(step)
    assert not parts
    monkeypatch.setattr(triton_prefill, "multiprocessors", lambda _: 24)
    monkeypatch.setattr(
        "stentor.kernels.attention._LAUNCHES", LaunchCache()
    )  # the first call's launch would be repeated
    assert_is_the_reference(step)
    assert parts == [4]


@pytest.mark.parametrize(
    ("programs", "keys", "expected"),
    [(8, 32768, 33), (8, 4096, 8), (8, 1023, 1), (66, 32768, 4), (67, 32768, 1), (1000, 32768, 1), (1, 0, 1)],
)
def test_keys_are_split_where_most_of_the_device_would_be_idle(programs: int, keys: int, expected: int) -> None:
    assert prefill_split.count_parts(programs, keys, 132) == expected
