"""Tensors that a checkpoint holds and a model has no place for."""

import pytest
import torch

from stentor.engine.layers.linear.weights import WeightError, WeightMap


def _map() -> tuple[WeightMap, torch.Tensor]:
    weights, norm = WeightMap(), torch.zeros(3)
    weights.add("norm.weight", norm)
    return weights, norm


def test_a_tensor_without_elements_is_passed_over() -> None:
    """transformers stores those of no shared experts."""
    weights, norm = _map()
    weights.load([("shared_experts.up_proj.weight", torch.empty(0, 4)), ("norm.weight", torch.ones(3))])
    assert norm.tolist() == [1, 1, 1]


def test_any_other_is_named() -> None:
    weights, _ = _map()
    with pytest.raises(WeightError, match=r"holds shared_experts\.up_proj\.weight, which .* has no place for"):
        weights.load([("norm.weight", torch.ones(3)), ("shared_experts.up_proj.weight", torch.zeros(1, 4))])
