from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from stentor.kernels.tuning import Config, overridden
from stentor.kernels.variants import Choice
from stentor.kernels.varlen_attention import choose, lay_out_keys, varlen_attention
from stentor.tests.kernels.gpu import DEVICE, TRITON_FLOATS
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal, thread_count

TOLERANCE = {torch.float32: 5e-6, torch.float16: 3e-3, torch.bfloat16: 1.6e-2}
SELF = [(40, 40), (0, 0), (1, 1), (75, 75)]
CROSS = [(7, 50), (33, 0), (40, 3), (0, 9), (70, 70)]
"""(queries, keys) of each sequence."""


class Case:
    def __init__(
        self,
        sequences: list[tuple[int, int]],
        *,
        heads: int = 4,
        kv_heads: int = 2,
        dim: int = 32,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.news, self.lengths = ([pair[part] for pair in sequences] for part in (0, 1))
        self.q = normal(sum(self.news), heads, dim, seed=1, dtype=dtype).to(DEVICE)
        fused = normal(sum(self.lengths), 2 * kv_heads * dim, seed=2, dtype=dtype).to(DEVICE)
        self.k, self.v = (part.unflatten(1, (kv_heads, dim)) for part in fused.chunk(2, dim=1))

    def run(self, variant: Choice = "triton", **options: Any) -> Tensor:
        q_start, k_start = (
            torch.tensor([0, *counts]).cumsum(0).int().to(DEVICE) for counts in (self.news, self.lengths)
        )
        options = {"scale": self.q.shape[2] ** -0.5, **options}
        max_q, max_k = max(self.news), max(self.lengths)
        return varlen_attention(self.q, self.k, self.v, q_start, k_start, max_q, max_k, variant=variant, **options)

    def torch_attention(self, causal: bool = False, window: tuple[int, int] = (-1, -1)) -> Tensor:
        """Row by row as torch has it, but zeros where a query sees nothing."""
        parts, group = [], self.q.shape[1] // self.k.shape[1]
        left, right = window[0], 0 if causal else window[1]
        split = (rows.split(counts) for rows, counts in zip((self.q, self.k, self.v), self._counts(), strict=True))
        for q, k, v in zip(*split, strict=True):
            distance = torch.arange(len(k)) - (torch.arange(len(q)) + len(k) - len(q))[:, None]
            seen = torch.ones_like(distance, dtype=torch.bool)
            if left >= 0:
                seen &= distance >= -left
            if right >= 0:
                seen &= distance <= right
            some = seen.any(1).to(q.device)
            keys, values = (rows.repeat_interleave(group, 1).transpose(0, 1) for rows in (k, v))
            out = scaled_dot_product_attention(q.transpose(0, 1), keys, values, attn_mask=seen.to(q.device))
            out = out.transpose(0, 1)
            parts.append(out.masked_fill(~some[:, None, None], 0.0))
        return torch.cat(parts)

    def _counts(self) -> tuple[list[int], list[int], list[int]]:
        return self.news, self.lengths, self.lengths


MASKS: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"window": (9, 4)},
    {"window": (-1, 20)},
    {"window": (40, -1)},
    {"window": (0, 0)},
    {"causal": True, "window": (17, 5)},
]


@pytest.mark.parametrize("options", MASKS, ids=str)
@pytest.mark.parametrize("sequences", [SELF, CROSS])
def test_the_reference_is_what_torch_computes(sequences: list[tuple[int, int]], options: dict[str, Any]) -> None:
    case = Case(sequences, heads=6)
    assert_close(case.run("reference", **options), case.torch_attention(**options), 5e-6)


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("options", MASKS, ids=str)
@pytest.mark.parametrize("sequences", [SELF, CROSS])
def test_sequences_of_any_lengths_and_masks_are_the_reference(
    dtype: torch.dtype, sequences: list[tuple[int, int]], options: dict[str, Any]
) -> None:
    case = Case(sequences, dtype=dtype)
    assert choose(case.q, "triton") == "triton"
    assert_close(case.run(**options), case.run("reference", **options), TOLERANCE[dtype])


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "softcap", "sunk"),
    [(3, 3, 64, 0.0, False), (4, 1, 80, 5.0, False), (7, 1, 96, 0.0, True), (2, 1, 256, 30.0, True)],
)
def test_heads_caps_and_sinks_are_the_references(
    dtype: torch.dtype, heads: int, kv_heads: int, dim: int, softcap: float, sunk: bool
) -> None:
    case = Case([(40, 40), (5, 33)], heads=heads, kv_heads=kv_heads, dim=dim, dtype=dtype)
    options: dict[str, Any] = {
        "softcap": softcap,
        "sinks": torch.linspace(-4, 9, heads, device=DEVICE) if sunk else None,
    }
    assert_close(case.run(**options), case.run("reference", **options), TOLERANCE[dtype])


@pytest.mark.triton
@pytest.mark.parametrize(
    "config", [Config.of(BLOCK_M=16, BLOCK_N=64), Config.of(BLOCK_M=64, BLOCK_N=16)], ids=["wide", "tall"]
)
@pytest.mark.parametrize("options", [{}, {"window": (20, 3)}], ids=str)
def test_tiles_of_any_size_give_the_same(config: Config, options: dict[str, Any]) -> None:
    case = Case([(3, 50), (12, 20), (6, 0)], heads=20, kv_heads=1)
    with overridden("varlen_attention", config):
        assert_close(case.run(**options), case.run("reference", **options), 5e-6)


@pytest.mark.triton
@pytest.mark.parametrize("sequences", [[(0, 0)], [(0, 5), (0, 0)]])
def test_a_batch_may_bring_no_queries(sequences: list[tuple[int, int]]) -> None:
    case = Case(sequences)
    assert case.run().shape == case.run("reference").shape == (0, 4, 32)


@pytest.mark.triton
@pytest.mark.parametrize("window", [(1 << 40, -1), (-1, 1 << 40)])
def test_a_window_past_every_key_is_none(window: tuple[int, int]) -> None:
    case = Case(SELF)
    assert_close(case.run(window=window), case.run(), 1e-6)
    assert_same_bits(case.run("reference", window=window), case.run("reference"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [*MASKS, {"softcap": 5.0}], ids=str)
@pytest.mark.parametrize("sequences", [SELF, CROSS, [(700, 700), (3, 1100)]], ids=["self", "cross", "long"])
def test_the_native_variant_is_the_reference(
    dtype: torch.dtype, sequences: list[tuple[int, int]], options: dict[str, Any]
) -> None:
    case = Case(sequences, dtype=dtype)
    case.q, case.k, case.v = case.q.cpu(), case.k.cpu(), case.v.cpu()
    assert choose(case.q, "native") == "native"
    assert_close(case.run("native", **options), case.run("reference", **options), TOLERANCE[dtype])


@pytest.mark.parametrize("dim", [40, 72])
def test_heads_of_dims_that_no_product_has_whole_are_the_references(dim: int) -> None:
    """The head sizes of SigLIP and Qwen2-VL; products of bfloat16 pairs take 32 dims at a time."""
    case = Case([*CROSS, (70, 300)], dtype=torch.bfloat16, dim=dim)
    case.q, case.k, case.v = case.q.cpu(), case.k.cpu(), case.v.cpu()
    out = case.run("native")
    assert out.is_contiguous()
    assert_close(out, case.run("reference"), TOLERANCE[torch.bfloat16])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_native_variant_takes_sinks(dtype: torch.dtype) -> None:
    case = Case([*CROSS, (3, 1100)], dtype=dtype)
    case.q, case.k, case.v = case.q.cpu(), case.k.cpu(), case.v.cpu()
    options: dict[str, Any] = {"window": (9, 4), "sinks": torch.tensor([float("-inf"), -1.0, 4.0, 300.0])}
    out = case.run("native", **options)
    assert_close(out, case.run("reference", **options), TOLERANCE[dtype])
    assert out[:, 3].float().abs().max() < 1e-30  # all weight goes to its sink


@pytest.mark.parametrize("threads", [1, 2])
def test_a_sequence_is_bitwise_the_same_in_any_batch_and_thread_count(threads: int) -> None:
    alone, both = Case([(90, 90)]), Case([(90, 90), (70, 70)])
    with thread_count(threads):
        assert_same_bits(both.run("native")[:90], Case([(90, 90), (5, 5)]).run("native")[:90])
        assert_close(both.run("native")[:90], both.run("reference")[:90], 5e-6)
        assert alone.run("native").shape == (90, 4, 32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("keys", [3, 16, 17, 49, 64, 130])
def test_a_query_that_sees_all_keys_gives_the_same_bits_alone(dtype: torch.dtype, keys: int) -> None:
    case = Case([(40, keys)], dtype=dtype)
    case.q, case.k, case.v = case.q.cpu(), case.k.cpu(), case.v.cpu()
    together, queries = case.run("native"), case.q
    for row in (0, 17, 39):
        case.q, case.news = queries[row : row + 1], [1]
        assert_same_bits(case.run("native"), together[row : row + 1])


@pytest.mark.parametrize("sequences", [SELF, CROSS])
def test_keys_that_were_laid_out_once_serve_every_layer(sequences: list[tuple[int, int]]) -> None:
    case = Case(sequences)
    layout = lay_out_keys(torch.tensor([0, *(keys for _, keys in sequences)]).cumsum(0).int())
    for scale in (0.1, 0.5):
        given = case.run("native", scale=scale, layout=layout)
        assert_same_bits(given, case.run("native", scale=scale))


@pytest.mark.parametrize("sequences", [[(0, 0)], [(0, 5), (0, 0)], [(4, 0)]])
def test_the_native_variant_takes_what_has_no_queries_or_no_keys(sequences: list[tuple[int, int]]) -> None:
    out = Case(sequences).run("native")
    assert out.shape[0] == sum(queries for queries, _ in sequences)
    assert not out.any()


def test_the_cpu_takes_the_native_variant_and_what_does_not_fit_is_refused() -> None:
    case = Case(SELF)
    q, k, v = case.q.cpu(), case.k.cpu(), case.v.cpu()
    assert choose(q) == "native"
    assert choose(q.half()) == "reference"
    start = torch.tensor([0, 116], dtype=torch.int32)

    def call(q: Tensor = q, k: Tensor = k, v: Tensor = v, q_start: Tensor = start, **options: Any) -> None:
        varlen_attention(q, k, v, q_start, start, 116, 116, **{"scale": 1.0, **options})

    call()
    with pytest.raises(ValueError, match="of one float dtype"):
        call(k=k.half())
    with pytest.raises(ValueError, match="do not fit"):
        call(v=v[:, :1])
    with pytest.raises(ValueError, match="do not fit"):
        call(q=q[:, :3])
    with pytest.raises(ValueError, match="heads and dims of q must be contiguous"):
        call(q=q[..., ::2])
    with pytest.raises(ValueError, match="q_start"):
        call(q_start=start.long())
    with pytest.raises(ValueError, match="window"):
        call(window=(-2, 0))
    with pytest.raises(ValueError, match="scale 0"):
        call(scale=0)
    with pytest.raises(ValueError, match="sinks"):
        call(sinks=torch.ones(3))
