"""What several kernel tests share."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from stentor.kernels import native

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1.6e-2}
"""Relative to the largest magnitude of what is expected; bfloat16 allows two units in the last place."""


COMPILES = pytest.mark.timeout(900)
"""Of tests that compile native code: a library takes up to a minute of a core, and ten on a machine with much else to
do."""


@contextmanager
def thread_count(count: int) -> Iterator[None]:
    """For kernels of torch and our own, whatever a worker's set-up has left in this process."""
    before, own = torch.get_num_threads(), native.set_threads(None)
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        native.set_threads(own)


def assert_close(actual: Tensor, expected: Tensor, tolerance: float | None = None) -> None:
    """Elementwise within ``tolerance`` of the largest expected magnitude; says where they differ most."""
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    if not expected.numel():
        return
    allowed = TOLERANCE[expected.dtype] if tolerance is None else tolerance
    error = (actual.double() - expected.double()).abs()
    worst = int(error.argmax())
    bound = allowed * max(1.0, float(expected.double().abs().max()))
    assert float(error.max()) <= bound, (
        f"element {worst}: {actual.flatten()[worst]} for {expected.flatten()[worst]}, allowed {bound}"
    )


def assert_same_bits(actual: Tensor, expected: Tensor) -> None:
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    integers = torch.int32 if actual.dtype == torch.float32 else torch.int16
    assert torch.equal(actual.contiguous().view(integers), expected.contiguous().view(integers))


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
