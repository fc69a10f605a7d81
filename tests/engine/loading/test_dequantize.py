"""Decoded blocks against the gguf package's own decoder."""

import gguf
import numpy as np
import pytest
import torch

from stentor.engine.loading.gguf.dequantize import dequantize
from stentor.engine.loading.gguf.types import FLOATS, READABLE, GGMLType
from stentor.tests.engine.loading.k_quants import random_blocks


def blocks_of_all_magnitudes(kind: GGMLType, rows: int, blocks: int) -> np.ndarray:
    """Random bytes, uint8 [rows, bytes], whose factors are finite halves of all magnitudes and both signs."""
    rng = np.random.default_rng(int(kind))
    factors = rng.normal(0, 1, rows * blocks) * 10.0 ** rng.integers(-6, 3, rows * blocks)
    return random_blocks(gguf.GGMLQuantizationType(int(kind)), factors).reshape(rows, -1)


@pytest.mark.parametrize("kind", sorted(READABLE - FLOATS), ids=lambda kind: kind.name)
def test_random_blocks_decode_to_the_reference_values(kind: GGMLType) -> None:
    raw = blocks_of_all_magnitudes(kind, rows=16, blocks=8)
    with np.errstate(over="ignore"):  # any exponent of MXFP4 is a block's scale
        expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(int(kind)))
    found = dequantize(torch.from_numpy(raw), kind)
    assert found.dtype == torch.float32
    assert found.shape == (16, 8 * kind.elements)
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("kind", sorted(FLOATS), ids=lambda kind: kind.name)
def test_stored_floats_decode_to_the_reference_values(kind: GGMLType) -> None:
    values = np.random.default_rng(7).normal(0, 3, (5, 33)).astype(np.float32)
    raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType(int(kind)))
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(int(kind)))
    found = dequantize(torch.from_numpy(np.ascontiguousarray(raw).view(np.uint8)), kind)
    np.testing.assert_array_equal(found.numpy(), expected.astype(np.float32))


def test_the_table_of_types_agrees_with_the_reference() -> None:
    known = {kind.name: (int(kind), gguf.GGML_QUANT_SIZES[kind]) for kind in gguf.GGMLQuantizationType}
    ours = {kind.name: (int(kind), (kind.elements, kind.block_bytes)) for kind in GGMLType}
    for name in ours.keys() & known.keys():
        assert ours[name] == known[name], name
    assert {kind.name for kind in READABLE} <= known.keys()


def test_an_unreadable_type_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="Q8_K cannot be decoded"):
        dequantize(torch.zeros(1, 292, dtype=torch.uint8), GGMLType.Q8_K)
