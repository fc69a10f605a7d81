"""Weights that are quantised while they load, those that make Mamba's steps among them, stay near transformers."""

from pathlib import Path

import pytest
import torch

from stentor.tests.parity import tiny
from stentor.tests.parity.cuts import expected_logits, prompt_of
from stentor.tests.parity.paged import PagedDecoder
from stentor.tests.parity.tiny_moe import clearest, is_mixture

MOST = {"ling": 0.07}
"""Of the mean error of a logit, in standard deviations of all; else 0.05. Sums of decays make it larger: it is 0.050
here, and as high for other models with the gated delta rule (Kimi Linear 0.041, Qwen3-Next 0.060)."""


@pytest.mark.parametrize("name", ["falcon-mamba", "jamba-dense", "mimo-v2-flash", "minimax", "recurrent-gemma", "ling"])
def test_weights_are_quantised_while_they_load(name: str, tmp_path: Path) -> None:
    model = tiny.make(name, tmp_path)
    ours = PagedDecoder(tmp_path, dtype=torch.bfloat16, quantization="int8")
    prompt = prompt_of(6)
    if is_mixture(model):
        prompt = clearest(model, [prompt_of(seed, 24) for seed in range(64)])
    ours.add(0, prompt)
    (logits,) = ours.run((0, 0, len(prompt)))
    expected = expected_logits(model, prompt)
    assert 0 < ((logits - expected).abs() / expected.std()).mean() < MOST.get(name, 0.05)
