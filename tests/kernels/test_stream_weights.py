"""Weights of residual streams: sums that are gated, and a mixture that keeps their size."""

import pytest
import torch

from stentor.kernels.stream_weights import choose, stream_weights
from stentor.kernels.variants import Variant
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal, thread_count


def given(tokens: int, streams: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    width = streams * (streams + 2)
    return 3 * normal(tokens, width, seed=1), normal(width, seed=2), torch.tensor([0.5, 1.5, 2.0])


@pytest.mark.parametrize(("tokens", "streams", "iterations"), [(1, 4, 20), (37, 4, 1), (0, 2, 3), (5, 3, 7)])
def test_the_native_variant_gives_the_reference_s_weights(tokens: int, streams: int, iterations: int) -> None:
    x, base, scale = given(tokens, streams)
    assert choose(x) == "native"
    native, reference = (
        stream_weights(x, base, scale, streams=streams, iterations=iterations, eps=1e-6, variant=variant)
        for variant in ("native", "reference")
    )
    assert_close(native, reference, 1e-5)


@pytest.mark.parametrize("variant", ["native", "reference"])
def test_rows_and_columns_of_the_mixture_sum_to_1(variant: Variant) -> None:
    x, base, scale = given(9, 4)
    found = stream_weights(x / 3, base, scale, streams=4, iterations=60, eps=1e-6, variant=variant)
    before, after, mixture = found[:, :4], found[:, 4:8], found[:, 8:].view(-1, 4, 4)
    for dim in (1, 2):
        assert_close(mixture.sum(dim), torch.ones(9, 4), 1e-3)
    assert 0 < before.min() <= before.max() < 1.001
    assert 1 < after.max() <= 2


def test_a_token_has_the_same_bits_beside_any_others_and_on_any_threads() -> None:
    x, base, scale = given(200, 4)
    with thread_count(3):
        together = stream_weights(x, base, scale, streams=4, iterations=20, eps=1e-6)
    alone = stream_weights(x[111:112], base, scale, streams=4, iterations=20, eps=1e-6)
    assert_same_bits(alone[0], together[111])


def test_what_does_not_fit_is_refused() -> None:
    x, base, scale = given(3, 4)
    with pytest.raises(ValueError, match=r"x .* must be contiguous float32 \[3, 15\]"):
        stream_weights(x, base, scale, streams=3, iterations=1, eps=0.0)
    with pytest.raises(ValueError, match="4 streams and 0 iterations"):
        stream_weights(x, base, scale, streams=4, iterations=0, eps=0.0)
    with pytest.raises(ValueError, match=r"scale .* must be contiguous float32 \[3\]"):
        stream_weights(x, base, scale[:2], streams=4, iterations=1, eps=0.0)
