"""The definition of attention against torch's own."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from stentor.kernels.attention import choose
from stentor.tests.kernels.helpers import assert_close
from stentor.tests.kernels.paged_sequences import FP8, Step, make_step

SEQUENCES = [(70, 40), (5, 5), (33, 0), (100, 3), (48, 1)]


def torch_attention(step: Step, *, window: int = 0, causal: bool = True) -> Tensor:
    """Row by row as torch has it: [T, heads, dim]."""
    parts, group = [], step.q.shape[1] // step.k_cache.shape[1]
    news = step.batch.query_start.diff().tolist()
    for q, (k, v) in zip(step.q.cpu().split(news), step.dense, strict=True):
        length = k.shape[1]
        position = torch.arange(length - len(q), length)[:, None]
        key = torch.arange(length)
        seen = torch.ones(len(q), length, dtype=torch.bool)
        if causal:
            seen &= key <= position
        if window:
            seen &= key > position - window
        k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        parts.append(scaled_dot_product_attention(q.transpose(0, 1), k, v, attn_mask=seen).transpose(0, 1))
    return torch.cat(parts).to(step.q.device)


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 4, 64), (8, 2, 80), (7, 1, 24)])
@pytest.mark.parametrize(("size", "transposed"), [(16, False), (64, True)])
@pytest.mark.parametrize("options", [{}, {"window": 21}, {"causal": False}])
def test_it_is_what_torch_computes(
    heads: int, kv_heads: int, dim: int, size: int, transposed: bool, options: dict[str, Any]
) -> None:
    step = make_step(SEQUENCES, heads=heads, kv_heads=kv_heads, dim=dim, size=size, transposed=transposed)
    assert_close(step.run("reference", **options), torch_attention(step, **options), 5e-6)


def test_float8_caches_hold_multiples_of_their_heads_scales() -> None:
    step = make_step(SEQUENCES, cache_dtype=FP8)
    assert step.k_scale is not None
    assert step.k_scale[0] != step.k_scale[1]
    assert_close(step.run("reference"), torch_attention(step), 5e-6)


def test_a_sink_takes_its_share_of_the_weights_and_adds_no_value() -> None:
    step = make_step([(40, 6)], heads=4, kv_heads=2)
    sinks = torch.tensor([-100.0, 0.0, 1.5, 100.0], device=step.q.device)
    plain, sunk = step.run("reference"), step.run("reference", sinks=sinks)
    k = step.dense[0][0].to(step.q.device)
    for token in range(6):
        for head in range(4):
            scores = k[head // 2, : 35 + token] @ step.q[token, head] * 32**-0.5
            share = 1 / (1 + torch.exp(sinks[head] - scores.logsumexp(0)))
            assert_close(sunk[token, head], plain[token, head] * share, 5e-6)


def test_a_slope_takes_its_multiple_of_the_distance_from_scores_behind_the_soft_cap() -> None:
    step = make_step([(40, 6)], heads=4, kv_heads=2)
    slopes = torch.tensor([0.0, 0.5, 0.01, 3.0], device=step.q.device)
    found = step.run("reference", slopes=slopes, softcap=2.0)
    k, v = (part.to(step.q.device) for part in step.dense[0])
    for token in range(6):
        seen = 35 + token
        away = torch.arange(seen, device=step.q.device) - (seen - 1)
        for head in range(4):
            scores = 2 * torch.tanh(k[head // 2, :seen] @ step.q[token, head] * 32**-0.5 / 2) + slopes[head] * away
            assert_close(found[token, head], scores.softmax(0) @ v[head // 2, :seen], 5e-6)


@pytest.mark.parametrize("own", [True, False])
def test_the_last_number_by_distance_is_that_of_all_farther_keys_behind_the_soft_cap(own: bool) -> None:
    step = make_step([(40, 6)], heads=4, kv_heads=2)
    numbers = torch.randn(6, 4, 7, generator=torch.Generator().manual_seed(1)).to(step.q.device)
    distances = numbers if own else numbers[0].contiguous()
    found = step.run("reference", distances=distances, softcap=2.0)
    k, v = (part.to(step.q.device) for part in step.dense[0])
    for token in range(6):
        seen = 35 + token
        away = [min(seen - 1 - key, 6) for key in range(seen)]
        for head in range(4):
            scores = 2 * torch.tanh(k[head // 2, :seen] @ step.q[token, head] * 32**-0.5 / 2)
            scores += numbers[token if own else 0, head, away]
            assert_close(found[token, head], scores.softmax(0) @ v[head // 2, :seen], 5e-6)


def test_a_soft_cap_does_not_touch_the_sink() -> None:
    step = make_step([(1, 1)])
    sinks = torch.full((4,), 7.0, device=step.q.device)
    out = step.run("reference", sinks=sinks, softcap=1e-6)
    assert_close(out, step.run("reference") / (1 + torch.tensor(7.0).exp()), 1e-6)


def test_cross_attention_may_have_fewer_keys_than_queries_and_none_give_zeros() -> None:
    step = make_step([(3, 9), (0, 4), (20, 2)])
    out = step.run("reference", causal=False)
    assert not out[9:13].any()
    assert_close(out[:9], torch_attention(step, causal=False)[:9], 5e-6)
    with pytest.raises(IndexError, match="sequence 0"):
        step.run("reference")


def test_decode_rows_of_padding_give_zeros() -> None:
    step = make_step([(9, 2), (0, 2), (30, 2), (40, 7)], decode_rows=3, decode_query_len=2)
    out = step.run("reference")
    alone = make_step([(9, 2), (7, 2), (30, 2), (40, 7)]).run("reference")
    assert not out[2:4].any()
    assert_close(out[:2], alone[:2])
    assert_close(out[4:], alone[4:])


def test_tokens_of_nobody_behind_prompts_give_zeros() -> None:
    step = make_step([(9, 1), (40, 7), (0, 0), (0, 5)], decode_rows=1)
    out = step.run("reference")
    assert not out[8:].any()
    assert_close(out[:8], make_step([(9, 1), (40, 7)]).run("reference"))


def test_the_variant_is_chosen_by_device_type_and_shape() -> None:
    step = make_step([(9, 2)], transposed=True)
    q, k = step.q.cpu(), step.k_cache.cpu()
    assert choose(q, k) == choose(q, k.to(FP8)) == "native"
    assert choose(q, k.bfloat16()) == "reference"
    assert choose(q, k.transpose(2, 3).contiguous().transpose(2, 3)) == "reference"
    with pytest.raises(ValueError, match="the native variant cannot run"):
        choose(q, k.bfloat16(), "native")
