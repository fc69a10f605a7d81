"""How results that were quantised as they were made are compared."""

import torch

from stentor.kernels.quantize import ActivationScheme, Quantized
from stentor.kernels.quantize.scheme import FP8
from stentor.tests.kernels.gpu import DEVICE


def scale_for(scheme: ActivationScheme) -> torch.Tensor | None:
    return torch.tensor([0.013], device=DEVICE) if scheme.granularity == "tensor" else None


def assert_within_a_step(actual: Quantized, expected: Quantized) -> None:
    """Scales agree to float32's rounding (or the dtype's, of a value near the top), values to one step, few differ."""
    assert actual.values.shape == expected.values.shape
    assert actual.values.dtype == expected.values.dtype
    assert actual.scales.shape == expected.scales.shape
    assert torch.allclose(actual.scales, expected.scales, rtol=8e-3, atol=0)
    if not expected.values.numel():
        return
    apart = (_order(actual.values) - _order(expected.values)).abs()
    assert int(apart.max()) <= 1
    assert float((apart > 0).float().mean()) <= 0.02


def _order(values: torch.Tensor) -> torch.Tensor:
    """Consecutive integers for consecutive values."""
    if values.dtype != FP8:
        return values.int()
    bits = values.view(torch.uint8).int()
    magnitude = bits & 0x7F
    return torch.where(bits >= 128, -magnitude, magnitude)
