import pytest
import torch

from stentor.engine.layers.audio.convolution import Convolution
from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.layers.linear.weights import WeightError, WeightMap


def made(inputs: int, outputs: int, *, packed: bool, stride: int = 1) -> tuple[Convolution, WeightMap]:
    weights = WeightMap()
    place = LayerContext(torch.device("cpu"), torch.float32, False, packed=packed)
    return Convolution(weights, "conv", inputs, outputs, place, stride=stride), weights


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("stride", "time"), [(1, 10), (1, 1), (2, 10), (2, 2)])
def test_it_is_torchs_convolution(packed: bool, stride: int, time: int) -> None:
    generator = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(24, 7, 3, generator=generator), torch.randn(24, generator=generator)
    x = torch.randn(3, time, 7, generator=generator)
    convolution, weights = made(7, 24, packed=packed, stride=stride)
    weights.load([("conv.weight", weight), ("conv.bias", bias)])
    expected = torch.nn.functional.conv1d(x.transpose(1, 2), weight, bias, stride=stride, padding=1)
    torch.testing.assert_close(convolution(x), expected.transpose(1, 2), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(convolution(x[1:2]), expected.transpose(1, 2)[1:2], atol=1e-5, rtol=1e-5)


def test_a_weight_of_another_shape_is_refused() -> None:
    _, weights = made(7, 24, packed=False)
    with pytest.raises(WeightError, match=r"conv.weight has shape \(24, 7, 5\) in the checkpoint, expected"):
        weights.load([("conv.weight", torch.ones(24, 7, 5)), ("conv.bias", torch.ones(24))])
