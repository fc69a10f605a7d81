import pytest
import torch

from stentor.kernels import add_layer_norm, add_rms_norm, layer_norm, rms_norm
from stentor.kernels.norm import choose, choose_layer
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal, thread_count

DTYPES = (torch.float32, torch.bfloat16)
EPS = 1e-5
TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 3e-2}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("plus_one", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (1, 576), (5, 7), (3, 100), (130, 576), (4, 3, 64), (9,), (2, 0)])
def test_the_native_norm_is_the_reference(dtype: torch.dtype, plus_one: bool, shape: tuple[int, ...]) -> None:
    x, weight = normal(*shape, seed=1, dtype=dtype), normal(shape[-1], seed=2, dtype=dtype)
    assert choose(x) == "native"
    native = rms_norm(x, weight, EPS, plus_one=plus_one)
    assert_close(native, rms_norm(x, weight, EPS, plus_one=plus_one, variant="reference"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_of_a_fused_projection_are_normed_where_they_lie(dtype: torch.dtype) -> None:
    fused = normal(6, 960, seed=1, dtype=dtype)
    q = fused[:, 64:640].view(6, 9, 64)
    weight = normal(64, seed=2, dtype=dtype)
    assert choose(q) == "native"
    out = rms_norm(q, weight, EPS)
    assert out.is_contiguous()
    assert_same_bits(out, rms_norm(q.contiguous(), weight, EPS))
    assert_close(out, rms_norm(q, weight, EPS, variant="reference"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [5, 64, 576])
def test_the_residual_becomes_the_sum_and_the_norm_is_of_the_rounded_sum(dtype: torch.dtype, width: int) -> None:
    x, residual = normal(7, width + 3, seed=1, dtype=dtype)[:, :width], normal(7, width, seed=2, dtype=dtype)
    weight = normal(width, seed=3, dtype=dtype)
    native_sum, reference_sum = residual.clone(), residual.clone()
    native = add_rms_norm(x, native_sum, weight, EPS)
    reference = add_rms_norm(x, reference_sum, weight, EPS, variant="reference")
    assert_same_bits(native_sum, reference_sum)
    assert_same_bits(native_sum, x + residual)
    assert_close(native, reference)
    assert_same_bits(native, rms_norm(native_sum, weight, EPS))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_bitwise_the_same_in_any_batch_and_thread_count(dtype: torch.dtype) -> None:
    x, weight = normal(200, 576, seed=1, dtype=dtype), normal(576, seed=2, dtype=dtype)
    alone = torch.cat([rms_norm(x[i : i + 1], weight, EPS) for i in range(200)])
    for threads in (1, 2):
        with thread_count(threads):
            assert_same_bits(rms_norm(x, weight, EPS), alone)
            assert_same_bits(rms_norm(x[17:90], weight, EPS), alone[17:90])


def test_bfloat16_rounds_before_the_weight_and_gemma_rounds_after() -> None:
    x, weight = normal(50, 64, seed=1, dtype=torch.bfloat16), normal(64, seed=2, dtype=torch.bfloat16)
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    llama, gemma = normed.bfloat16() * weight, (normed * (1 + weight.float())).bfloat16()
    assert (rms_norm(x, weight, EPS) != llama).float().mean() < 0.01
    assert (rms_norm(x, weight, EPS, plus_one=True) != gemma).float().mean() < 0.01


def test_a_nan_stays_in_its_row() -> None:
    x = normal(3, 64, seed=1)
    x[1, 5] = float("nan")
    out = rms_norm(x, torch.ones(64), EPS)
    assert out[1].isnan().all()
    assert not out[[0, 2]].isnan().any()


def test_float16_takes_the_reference() -> None:
    x = normal(3, 64, seed=1, dtype=torch.float16)
    assert choose(x) == "reference"
    assert rms_norm(x, torch.ones(64).half(), EPS).dtype == torch.float16


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit weight"):
        rms_norm(torch.ones(2, 8), torch.ones(9), EPS)
    with pytest.raises(ValueError, match="does not fit weight"):
        rms_norm(torch.ones(2, 8), torch.ones(8).bfloat16(), EPS)
    with pytest.raises(ValueError, match="must be contiguous"):
        rms_norm(torch.ones(8, 2).T, torch.ones(8), EPS)
    with pytest.raises(ValueError, match="does not fit residual"):
        add_rms_norm(torch.ones(2, 8), torch.ones(3, 8), torch.ones(8), EPS)
    with pytest.raises(ValueError, match="residual must be contiguous"):
        add_rms_norm(torch.ones(2, 8), torch.ones(2, 16)[:, :8], torch.ones(8), EPS)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (1, 576), (5, 7), (3, 100), (130, 576), (4, 3, 64), (9,)])
def test_the_native_layer_norm_is_the_reference(dtype: torch.dtype, with_bias: bool, shape: tuple[int, ...]) -> None:
    x, weight = normal(*shape, seed=1, dtype=dtype) + 3, normal(shape[-1], seed=2, dtype=dtype)
    bias = normal(shape[-1], seed=3, dtype=dtype) if with_bias else None
    assert choose_layer(x) == "native"
    assert_close(
        layer_norm(x, weight, bias, EPS), layer_norm(x, weight, bias, EPS, variant="reference"), TOLERANCE[dtype]
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [5, 64, 576])
def test_the_native_layer_norm_is_of_the_rounded_sum(dtype: torch.dtype, width: int) -> None:
    x, residual = normal(7, width + 3, seed=1, dtype=dtype)[:, :width], normal(7, width, seed=2, dtype=dtype)
    weight = normal(width, seed=3, dtype=dtype)
    total = residual.clone()
    out = add_layer_norm(x, total, weight, weight, EPS)
    assert_same_bits(total, x + residual)
    assert_same_bits(out, layer_norm(total, weight, weight, EPS))
    alone = torch.cat([layer_norm(total[i : i + 1], weight, weight, EPS) for i in range(7)])
    assert_same_bits(out, alone)
