import pytest
import torch
from torch import Tensor

from stentor.kernels.norm import (
    add_layer_norm,
    add_rms_norm,
    add_rms_norm_quantized,
    choose,
    choose_layer,
    choose_quantized,
    layer_norm,
    rms_norm,
    rms_norm_quantized,
)
from stentor.kernels.norm.tunables import tunables
from stentor.kernels.quantize import ActivationScheme
from stentor.kernels.quantize.scheme import FP8, Granularity
from stentor.kernels.tuning import Config, Tunable, overridden
from stentor.tests.kernels.gpu import DEVICE, TRITON_FLOATS
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal
from stentor.tests.kernels.quantized_results import assert_within_a_step, scale_for

EPS = 1e-5
SHAPES = [(1, 1), (5, 7), (3, 100), (2, 1000), (1, 4096), (4, 3, 64), (9,), (2, 0), (0, 8)]
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def made(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    return normal(*shape, seed=seed, dtype=dtype).to(DEVICE)


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("plus_one", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_triton_norm_is_the_reference(dtype: torch.dtype, plus_one: bool, shape: tuple[int, ...]) -> None:
    x, weight = made(*shape, seed=1, dtype=dtype), made(shape[-1], seed=2, dtype=dtype)
    assert choose(x, "triton") == "triton"
    out = rms_norm(x, weight, EPS, plus_one=plus_one, variant="triton")
    assert_close(out, rms_norm(x, weight, EPS, plus_one=plus_one, variant="reference"), TOLERANCE[dtype])


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_triton_layer_norm_is_the_reference(dtype: torch.dtype, with_bias: bool, shape: tuple[int, ...]) -> None:
    x, weight = made(*shape, seed=1, dtype=dtype) + 3, made(shape[-1], seed=2, dtype=dtype)
    bias = made(shape[-1], seed=3, dtype=dtype) if with_bias else None
    assert choose_layer(x, "triton") == "triton"
    out = layer_norm(x, weight, bias, EPS, variant="triton")
    assert_close(out, layer_norm(x, weight, bias, EPS, variant="reference"), TOLERANCE[dtype])


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("rows", [1, 2, 16])
def test_heads_of_a_fused_projection_are_normed_where_they_lie(dtype: torch.dtype, rows: int) -> None:
    q = made(5, 960, seed=1, dtype=dtype)[:, 64:640].view(5, 9, 64)
    weight = made(64, seed=2, dtype=dtype)
    with overridden("rms_norm", Config.of(ROWS=rows)):
        out = rms_norm(q, weight, EPS, variant="triton")
        alone = rms_norm(q.contiguous(), weight, EPS, variant="triton")  # another tile sums in another order
    assert out.is_contiguous()
    assert_same_bits(out, alone)
    assert_close(out, rms_norm(q, weight, EPS, variant="reference"), TOLERANCE[dtype])


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("norm", ["rms", "layer", "rms_quantized"])
@pytest.mark.parametrize("width", [5, 576])
def test_the_residual_becomes_the_sum_and_the_norm_is_of_the_rounded_sum(
    dtype: torch.dtype, norm: str, width: int
) -> None:
    x = made(7, width + 3, seed=1, dtype=dtype)[:, :width]
    residual, weight = made(7, width, seed=2, dtype=dtype), made(width, seed=3, dtype=dtype)
    rounded_sum = x + residual
    scheme = ActivationScheme(FP8, "token")
    if norm == "rms":
        out = add_rms_norm(x, residual, weight, EPS, variant="triton")
        assert_same_bits(out, rms_norm(rounded_sum, weight, EPS, variant="triton"))
    elif norm == "layer":
        out = add_layer_norm(x, residual, weight, weight, EPS, variant="triton")
        assert_same_bits(out, layer_norm(rounded_sum, weight, weight, EPS, variant="triton"))
    else:
        fused = add_rms_norm_quantized(x, residual, weight, EPS, scheme, variant="triton")
        alone = rms_norm_quantized(rounded_sum, weight, EPS, scheme, variant="triton")
        assert torch.equal(fused.scales, alone.scales)
        assert torch.equal(fused.values.view(torch.uint8), alone.values.view(torch.uint8))
    assert_same_bits(residual, rounded_sum)


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("to", [FP8, torch.int8])
@pytest.mark.parametrize("granularity", ["tensor", "token", "group"])
@pytest.mark.parametrize("plus_one", [False, True])
@pytest.mark.parametrize(("shape", "group"), [((3, 100), 32), ((1, 1), 128), ((2, 1000), 128), ((0, 64), 64)])
def test_a_quantised_norm_is_the_norm_and_then_quantised(
    dtype: torch.dtype,
    to: torch.dtype,
    granularity: Granularity,
    plus_one: bool,
    shape: tuple[int, int],
    group: int,
) -> None:
    x = made(*shape, seed=1, dtype=dtype) * torch.logspace(-2, 2, shape[1], device=DEVICE).to(dtype)
    weight = made(shape[1], seed=2, dtype=dtype)
    scheme = ActivationScheme(to, granularity, group)
    scale = scale_for(scheme)
    assert choose_quantized(x, scheme, "triton") == "triton"
    out = rms_norm_quantized(x, weight, EPS, scheme, scale, plus_one=plus_one, variant="triton")
    expected = rms_norm_quantized(x, weight, EPS, scheme, scale, plus_one=plus_one, variant="reference")
    assert_within_a_step(out, expected)


@pytest.mark.triton
def test_half_precision_rounds_before_the_weight_and_gemma_rounds_after() -> None:
    dtype = torch.float16
    x, weight = made(8, 512, seed=1, dtype=dtype), made(512, seed=2, dtype=dtype)
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    llama, gemma = normed.to(dtype) * weight, (normed * (1 + weight.float())).to(dtype)
    once = (normed * weight.float()).to(dtype)
    out = rms_norm(x, weight, EPS, variant="triton")
    assert (out != llama).float().mean() < 0.01
    assert (out != once).float().mean() > 0.1
    assert (rms_norm(x, weight, EPS, plus_one=True, variant="triton") != gemma).float().mean() < 0.01


@pytest.mark.triton
@pytest.mark.parametrize("width", [64, 300, 2000])
def test_a_row_is_bitwise_the_same_in_any_batch(width: int) -> None:
    x, weight = made(9, width, seed=1, dtype=torch.float32), made(width, seed=2, dtype=torch.float32)
    for rows in (slice(3, 4), slice(1, 6)):
        assert_same_bits(
            rms_norm(x[rows], weight, EPS, variant="triton"), rms_norm(x, weight, EPS, variant="triton")[rows]
        )
        assert_same_bits(
            layer_norm(x[rows], weight, weight, EPS, variant="triton"),
            layer_norm(x, weight, weight, EPS, variant="triton")[rows],
        )


@pytest.mark.triton
def test_a_nan_stays_in_its_row() -> None:
    x = made(3, 64, seed=1, dtype=torch.float32)
    x[1, 5] = float("nan")
    weight = torch.ones(64, device=DEVICE)
    out = rms_norm(x, weight, EPS, variant="triton")
    quantized = rms_norm_quantized(x, weight, EPS, ActivationScheme(FP8, "token"), variant="triton")
    assert out[1].isnan().all()
    assert quantized.scales[1].isnan()
    assert not out[[0, 2]].isnan().any()
    assert not quantized.values.float()[[0, 2]].isnan().any()


@pytest.mark.triton
def test_a_row_of_zeros_stays_zero_however_it_is_quantised() -> None:
    zeros, weight = torch.zeros(2, 64, device=DEVICE), torch.ones(64, device=DEVICE)
    for dtype in (FP8, torch.int8):
        for granularity in ("tensor", "token", "group"):
            scheme = ActivationScheme(dtype, granularity, 32)
            out = rms_norm_quantized(zeros, weight, EPS, scheme, scale_for(scheme), variant="triton")
            assert not out.values.float().any()
            assert (out.scales > 0).all()


@pytest.mark.triton
def test_what_the_kernels_do_not_take_is_said() -> None:
    long, four = torch.ones(1, 40000, device=DEVICE), torch.ones(1, 1, 1, 8, device=DEVICE)
    with pytest.raises(ValueError, match="rows of up to 32768, not 40000"):
        choose(long, "triton")
    with pytest.raises(ValueError, match="one to three dims, not 4"):
        choose_layer(four, "triton")
    with pytest.raises(ValueError, match="groups of a power of two, not 48"):
        choose_quantized(torch.ones(1, 96, device=DEVICE), ActivationScheme(FP8, "group", 48), "triton")


def test_what_no_fused_kernel_takes_is_normed_and_then_quantised() -> None:
    x, weight = made(3, 96, seed=1, dtype=torch.float32), made(96, seed=2, dtype=torch.float32)
    scheme = ActivationScheme(FP8, "group", 48)
    assert choose_quantized(x, scheme) == "reference"
    residual = torch.zeros_like(x)
    out = add_rms_norm_quantized(x, residual, weight, EPS, scheme)
    assert_same_bits(residual, x)
    assert_within_a_step(out, rms_norm_quantized(x, weight, EPS, scheme, variant="reference"))


def test_what_does_not_fit_is_refused() -> None:
    x, weight = torch.ones(2, 8), torch.ones(8)
    by_tensor, by_token = ActivationScheme(FP8, "tensor"), ActivationScheme(FP8, "token")
    with pytest.raises(ValueError, match="layer_norm: bias"):
        layer_norm(x, weight, torch.ones(9), EPS)
    with pytest.raises(ValueError, match="does not fit residual"):
        add_layer_norm(x, torch.ones(3, 8), weight, None, EPS)
    with pytest.raises(ValueError, match="scale is missing"):
        rms_norm_quantized(x, weight, EPS, by_tensor)
    with pytest.raises(ValueError, match="scale is given"):
        rms_norm_quantized(x, weight, EPS, by_token, torch.ones(1))
    with pytest.raises(ValueError, match=r"want scale \[1\] float32"):
        rms_norm_quantized(x, weight, EPS, by_tensor, torch.ones(2))
    with pytest.raises(ValueError, match=r"want rows \[T, K\]"):
        rms_norm_quantized(torch.ones(1, 2, 8), weight, EPS, by_token)


def test_the_layer_norm_is_that_of_torch() -> None:
    x, weight, bias = normal(4, 32, seed=1), normal(32, seed=2), normal(32, seed=3)
    expected = torch.nn.functional.layer_norm(x, (32,), weight, bias, EPS)
    assert_same_bits(layer_norm(x, weight, bias, EPS, variant="reference"), expected)


@pytest.mark.parametrize("tunable", tunables(), ids=lambda tunable: f"{tunable.operation} {tunable.key}")
@pytest.mark.gpu
def test_every_candidate_of_the_tuner_runs(tunable: Tunable) -> None:
    call = tunable.workload(torch.device(DEVICE))
    for config in tunable.candidates:
        with overridden(tunable.operation, config):
            call()
    torch.cuda.synchronize()
