"""Weights of Mamba that are quantised while they load, those that make its steps among them, stay near transformers."""

from pathlib import Path

import pytest
import torch

from stentor.tests.parity import tiny
from stentor.tests.parity.cuts import expected_logits, prompt_of
from stentor.tests.parity.paged import PagedDecoder


@pytest.mark.parametrize("name", ["falcon-mamba", "jamba-dense"])
def test_weights_are_quantised_while_they_load(name: str, tmp_path: Path) -> None:
    model = tiny.make(name, tmp_path)
    ours = PagedDecoder(tmp_path, dtype=torch.bfloat16, quantization="int8")
    prompt = prompt_of(6)
    ours.add(0, prompt)
    (logits,) = ours.run((0, 0, len(prompt)))
    expected = expected_logits(model, prompt)
    assert 0 < ((logits - expected).abs() / expected.std()).mean() < 0.05
