"""The pooled numbers in other types than float32."""

import math

import numpy as np
import pytest
import torch

from stentor.protocols.ipc.pooling import Pooled
from stentor.protocols.pooling.formats import Endianness, NumberType
from stentor.server.pooling import encoding


@pytest.mark.parametrize("order", ["little", "big"])
def test_numbers_are_rounded_to_bfloat16(order: Endianness) -> None:
    given = [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -1 - 3 * 2**-8, 0.0, -(2.0**-126), 2**-7]
    rounded = [1.0, 1 + 2**-6, 1 + 2**-7, -1 - 2**-6, 0.0, -(2.0**-126), 2**-7]  # of two equally near, the even one
    found = encoding.number_bytes(Pooled(1, len(given), np.array(given, "<f4").tobytes()), "bfloat16", order)
    upper = np.frombuffer(found, "<u2" if order == "little" else ">u2").astype("<u4") << 16
    assert upper.view("<f4").tolist() == rounded


@pytest.mark.parametrize(("name", "type"), [("fp8_e4m3", torch.float8_e4m3fn), ("fp8_e5m2", torch.float8_e5m2)])
def test_numbers_are_rounded_to_fp8_as_torch_rounds_them(name: NumberType, type: torch.dtype) -> None:
    every = torch.arange(256, dtype=torch.uint8).view(type).float()
    finite = every[every.isfinite()].sort().values
    middles = (finite[:-1] + finite[1:]) / 2
    infinity = torch.tensor(math.inf)
    given = [finite, middles, torch.nextafter(middles, infinity), torch.nextafter(middles, -infinity)]
    given += [torch.randn(999) * 0.05, torch.tensor([460.0, -465.0, 1e30, -math.inf, math.inf, 61439.0, 61440.0, -0.0])]
    numbers = torch.cat(given)
    found = encoding.number_bytes(Pooled(1, len(numbers), numbers.numpy().tobytes()), name, "big")
    assert found == numbers.to(type).view(torch.uint8).numpy().tobytes()
