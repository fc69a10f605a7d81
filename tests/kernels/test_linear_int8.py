import pytest
import torch

from stentor.kernels.linear_fp8 import triton_skinny
from stentor.kernels.linear_int8 import choose, linear_int8, selection_for
from stentor.kernels.quantize import Quantized, quantize_weight_int8
from stentor.kernels.quantize.operands import InputScales
from stentor.kernels.tuning import Config, overridden
from stentor.tests.kernels.eight_bit import TOLERANCE, int8_weight, quantized
from stentor.tests.kernels.gpu import DEVICE, TRITON_FLOATS
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal

# [T, N, K], and what runs it
SHAPES = (
    (1, 40, 300, "gemv"),
    (1, 136, 1040, "gemv"),
    (2, 5, 7, "skinny"),
    (17, 130, 272, "skinny"),
    (33, 64, 128, "skinny"),
    (65, 66, 200, "tiles"),
    (70, 20, 90, "tiles"),
)


@pytest.mark.triton
@pytest.mark.parametrize("input_scales", ["tensor", "token"])
@pytest.mark.parametrize(("tokens", "rows", "width", "implementation"), SHAPES)
def test_the_sum_of_int8_products_is_exact(
    tokens: int, rows: int, width: int, implementation: str, input_scales: InputScales
) -> None:
    x = quantized(tokens, width, torch.int8, input_scales)
    weight, scale = int8_weight(rows, width)
    assert choose(x, weight, scale, "triton") == "triton"
    assert selection_for(x, weight, scale, out_dtype=torch.float32, variant="triton").implementation == implementation
    made = linear_int8(x, weight, scale, out_dtype=torch.float32, variant="triton")
    exact = (x.values.double() @ weight.double().T) * x.scales.double() * scale.double()
    assert_close(made, exact.float(), 1e-6)
    ones = Quantized(x.values, torch.ones(1, device=DEVICE))
    sums = linear_int8(ones, weight, torch.ones(1, device=DEVICE), out_dtype=torch.float32, variant="triton")
    assert torch.equal(sums.double(), x.values.double() @ weight.double().T)


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize(("tokens", "rows", "width", "implementation"), SHAPES)
def test_inputs_that_are_not_quantised_are_multiplied_as_they_are(
    dtype: torch.dtype, tokens: int, rows: int, width: int, implementation: str
) -> None:
    x = normal(tokens, width + 16, seed=5, dtype=dtype).to(DEVICE)[:, 16:]
    weight, scale = int8_weight(rows, width)
    bias = normal(rows, seed=3, dtype=dtype).to(DEVICE)
    assert selection_for(x, weight, scale, variant="triton").implementation == implementation
    made = linear_int8(x, weight, scale, bias, variant="triton")
    assert_close(made, linear_int8(x, weight, scale, bias, variant="reference"), TOLERANCE[dtype])


@pytest.mark.triton
@pytest.mark.parametrize("splits", [1, 2, 3, 8])
def test_however_k_is_split_the_sum_is_the_same(splits: int) -> None:
    x = quantized(5, 600, torch.int8, "token")
    weight, scale = int8_weight(70, 600)
    bias = normal(70, seed=3).to(DEVICE)
    config = Config.of(BLOCK_T=16, BLOCK_N=64, BLOCK_K=128, SPLITS=splits)
    with overridden(triton_skinny.OPERATION, config):
        made = linear_int8(x, weight, scale, bias, out_dtype=torch.float32, variant="triton")
    assert_close(made, linear_int8(x, weight, scale, bias, out_dtype=torch.float32, variant="reference"), 1e-6)


@pytest.mark.triton
def test_every_int8_is_widened_exactly() -> None:
    numbers = torch.arange(-128, 128, dtype=torch.int8)
    weight = torch.zeros(256, 16, dtype=torch.int8)
    weight[:, 0] = numbers
    for tokens in (1, 2, 65):
        for dtype in (torch.float32, torch.float16):
            x = torch.ones(tokens, 16, dtype=dtype, device=DEVICE)
            made = linear_int8(x, weight.to(DEVICE), torch.ones(1, device=DEVICE), variant="triton")
            assert torch.equal(made.float().cpu(), numbers.float().expand(tokens, -1))


def test_the_reference_is_exact_however_long_a_row_is() -> None:
    x = torch.full((2, 5000), 127, dtype=torch.int8)
    weight = torch.full((3, 5000), 127, dtype=torch.int8)
    weight[1, ::2] = -127
    weight[2, 17] = 126
    made = linear_int8(Quantized(x, torch.ones(2, 1)), weight, torch.ones(3), out_dtype=torch.float32)
    exact = x.double() @ weight.double().T
    assert torch.equal(made, exact.float())
    assert exact.max() > 2**24


def test_the_reference_is_the_product_of_what_the_numbers_stand_for() -> None:
    x, (weight, scale) = normal(3, 300, seed=1), quantize_weight_int8(normal(200, 300, seed=2))
    expected = (x.double() @ (weight.double() * scale.double()[:, None]).T).float()
    assert selection_for(x, weight, scale).implementation == "reference"
    assert_close(linear_int8(x, weight, scale), expected, 1e-6)


@pytest.mark.triton
def test_a_result_is_bitwise_the_same_twice() -> None:
    x = normal(5, 600, seed=5, dtype=torch.float16).to(DEVICE)
    weight, scale = int8_weight(70, 600)
    first = linear_int8(x, weight, scale, out_dtype=torch.float32, variant="triton")
    assert_same_bits(first, linear_int8(x, weight, scale, out_dtype=torch.float32, variant="triton"))


def test_what_does_not_fit_is_refused() -> None:
    x, (weight, scale) = torch.ones(2, 256), quantize_weight_int8(torch.ones(200, 256))
    with pytest.raises(ValueError, match=r"want weight_scale float32 \[1\] or \[200\] on"):
        linear_int8(x, weight, torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"want scales of x float32 \[1\] or \[2, 1\], contiguous"):
        linear_int8(Quantized(x.to(torch.int8), torch.ones(2, 2)), weight, scale, out_dtype=torch.float32)
    with pytest.raises(ValueError, match="contiguous weight"):
        linear_int8(x, weight.T, scale)
    with pytest.raises(ValueError, match="want x Quantized"):
        linear_int8(x.to(torch.int8), weight, scale)
