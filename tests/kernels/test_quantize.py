import pytest
import torch
from torch import Tensor

from stentor.kernels.quantize import (
    ActivationScheme,
    Quantized,
    choose,
    quantize,
    quantize_weight_fp8,
    quantize_weight_int8,
    weights,
)
from stentor.kernels.quantize.scheme import FP8, LARGEST, Granularity
from stentor.kernels.variants import Choice
from stentor.tests.kernels.gpu import DEVICE, TRITON_FLOATS
from stentor.tests.kernels.helpers import normal

BOTH = (FP8, torch.int8)


def restored(quantized: Quantized, group: int) -> Tensor:
    values, scales = quantized
    if scales.shape[-1] > 1:
        scales = scales.repeat_interleave(group, -1)[:, : values.shape[1]]
    return values.float() * scales


def bits(values: Tensor) -> Tensor:
    return values.view(torch.uint8)


def scale_for(scheme: ActivationScheme) -> Tensor | None:
    return torch.tensor([0.013], device=DEVICE) if scheme.granularity == "tensor" else None


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("to", BOTH)
@pytest.mark.parametrize("granularity", ["tensor", "token", "group"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 100), (5, 384), (2, 5000), (0, 64)])
def test_the_triton_values_are_the_reference_bit_by_bit(
    dtype: torch.dtype, to: torch.dtype, granularity: Granularity, shape: tuple[int, int]
) -> None:
    x = (normal(*shape, seed=1) * 3).to(dtype).to(DEVICE)
    scheme = ActivationScheme(to, granularity, group=48 if shape[1] == 100 else 128)
    assert choose(x, "triton") == "triton"
    made = quantize(x, scheme, scale_for(scheme), variant="triton")
    expected = quantize(x, scheme, scale_for(scheme), variant="reference")
    assert made.values.dtype == to
    assert torch.equal(made.scales, expected.scales)
    assert torch.equal(bits(made.values), bits(expected.values))


@pytest.mark.triton
def test_every_value_between_two_fp8_numbers_goes_to_the_even_one() -> None:
    numbers = torch.arange(127, dtype=torch.uint8).view(FP8).float()
    middles = (numbers[1:] + numbers[:-1]) / 2
    x = torch.cat([numbers, -numbers, middles, -middles, middles * 1.0001, torch.tensor([500.0, -1e30])])[None].to(
        DEVICE
    )
    one = torch.ones(1, device=DEVICE)
    made = quantize(x, ActivationScheme(FP8, "tensor"), one, variant="triton")
    assert torch.equal(bits(made.values), bits(x.clamp(-448, 448).to(FP8)))
    assert torch.equal(made.values[0, :127].float().cpu(), numbers)


@pytest.mark.triton
@pytest.mark.parametrize("to", BOTH)
def test_rows_may_be_strided_and_longer_than_a_block(to: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    from stentor.kernels.quantize import triton

    monkeypatch.setattr(triton, "MAX_BLOCK", 64)
    x = normal(4, 500, seed=2).to(DEVICE)[:, 100:333]
    scheme = ActivationScheme(to, "token")
    made, expected = quantize(x, scheme, variant="triton"), quantize(x, scheme, variant="reference")
    assert made.values.is_contiguous()
    assert torch.equal(made.scales, expected.scales)
    assert torch.equal(bits(made.values), bits(expected.values))


@pytest.mark.triton
@pytest.mark.parametrize("granularity", ["token", "group"])
def test_zeros_stay_zeros_and_a_nan_stays_in_its_row(granularity: Granularity) -> None:
    x = normal(3, 128, seed=1).to(DEVICE)
    x[0] = 0
    x[1, 5] = float("nan")
    variants: tuple[Choice, ...] = ("triton", "reference")
    for variant in variants:
        made = quantize(x, ActivationScheme(FP8, granularity), variant=variant)
        assert not made.values[0].float().any()
        assert made.scales[0] > 0
        assert restored(made, 128)[1].isnan().all()
        assert not restored(made, 128)[[0, 2]].isnan().any()


@pytest.mark.parametrize("to", BOTH)
@pytest.mark.parametrize("granularity", ["token", "group"])
def test_what_was_quantised_is_near_and_its_greatest_value_exact(to: torch.dtype, granularity: Granularity) -> None:
    x = normal(7, 256, seed=3) * torch.logspace(-3, 3, 7)[:, None]
    made = quantize(x, ActivationScheme(to, granularity, group=64))
    assert made.scales.shape == ((7, 1) if granularity == "token" else (7, 4))
    step = 1 / 16 if to == FP8 else 0.5 / 127  # of the value itself; of the greatest one
    groups = x.view(7, -1, 256 if granularity == "token" else 64)
    greatest = groups.abs().amax(-1, keepdim=True)
    bound = groups.abs() * step + greatest * 2**-18 if to == FP8 else greatest * step * 1.001
    assert ((restored(made, 64).view_as(groups) - groups).abs() <= bound).all()
    assert (made.values.float().view_as(groups).abs().amax(-1) == LARGEST[to]).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("granularity", ["channel", "tensor", "block"])
@pytest.mark.parametrize("shape", [(300, 200), (128, 128), (1, 5), (257, 384)])
def test_a_weight_in_fp8_is_near_it_however_much_is_done_at_once(
    dtype: torch.dtype, granularity: weights.WeightGranularity, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, width = shape
    weight = (normal(*shape, seed=4) * torch.logspace(-2, 2, rows)[:, None]).to(dtype)
    before = weight.clone()
    values, scale = quantize_weight_fp8(weight, granularity)
    assert values.dtype == FP8
    assert values.shape == weight.shape
    if granularity == "channel":
        assert scale.shape == (rows,)
        spread = scale[:, None].expand(shape)
    elif granularity == "tensor":
        assert scale.shape == (1,)
        spread = scale.expand(shape)
    else:
        assert scale.shape == (-(-rows // 128), -(-width // 128))
        spread = scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :width]
    error = (values.float() * spread - weight.float()).abs()
    assert (error <= weight.float().abs() / 15.9 + spread * 2**-10 * 1.01).all()
    assert ((weight.float().abs() / spread) <= 448.01).all()
    assert torch.equal(weight, before)
    monkeypatch.setattr(weights, "_SCRATCH", 1)
    again, scale_again = quantize_weight_fp8(weight, granularity)
    assert torch.equal(bits(values), bits(again))
    assert torch.equal(scale, scale_again)


def test_a_weight_in_int8_is_within_half_a_step_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = normal(300, 70, seed=5)
    values, scale = quantize_weight_int8(weight)
    assert values.dtype == torch.int8
    assert scale.shape == (300,)
    assert ((values.float() * scale[:, None] - weight).abs() <= scale[:, None] * 0.5001).all()
    assert (values.abs().amax(-1) == 127).all()
    monkeypatch.setattr(weights, "_SCRATCH", 1)
    assert torch.equal(quantize_weight_int8(weight)[0], values)


def test_what_does_not_fit_is_refused() -> None:
    x = torch.ones(2, 8)
    with pytest.raises(ValueError, match="want x"):
        quantize(torch.ones(2, 8, dtype=torch.int32), ActivationScheme(FP8, "token"))
    with pytest.raises(ValueError, match="must be contiguous"):
        quantize(torch.ones(8, 2).T, ActivationScheme(FP8, "token"))
    with pytest.raises(ValueError, match="scale is missing"):
        quantize(x, ActivationScheme(FP8, "tensor"))
    with pytest.raises(ValueError, match="scale is given"):
        quantize(x, ActivationScheme(FP8, "token"), torch.ones(1))
    with pytest.raises(ValueError, match=r"want scale \[1\]"):
        quantize(x, ActivationScheme(FP8, "tensor"), torch.ones(2))
    with pytest.raises(ValueError, match="dtype must be"):
        ActivationScheme(torch.float16, "token")
    with pytest.raises(ValueError, match="multiple of 16"):
        ActivationScheme(FP8, "group", 100)
    with pytest.raises(ValueError, match="granularity must be"):
        quantize_weight_fp8(x, "row")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="want a weight"):
        quantize_weight_int8(torch.ones(8))
